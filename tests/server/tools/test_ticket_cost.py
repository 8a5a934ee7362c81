"""`python -m server.tools.ticket_cost` reports both decoders."""

from __future__ import annotations

import json
import subprocess
import sys


def test_both_decoders_are_reported() -> None:
    program = [sys.executable, "-m", "server.tools.ticket_cost", "--at-s", "0.5"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=100, check=True)
    greedy, beam = json.loads(done.stdout.splitlines()[-1])
    assert (greedy["decoder"], beam["decoder"]) == ("greedy", "beam")
    assert 0 < greedy["decoder_bytes"] < beam["decoder_bytes"] < beam["ticket_characters"]
