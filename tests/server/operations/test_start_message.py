"""Start message of `tutti serve`: from a real process, and each line by its settings."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from server.operations.start_message import start_message
from server.settings import Settings
from tests.support.servers.fakes import WAIT_S
from tests.support.servers.server_process import REAL, ServerProcess

ROOT = Path(__file__).parents[3]
URL = "http://127.0.0.1:8080"


@contextmanager
def serving(*options: str) -> Iterator[subprocess.Popen[str]]:
    """`tutti serve` as a person runs it, with a decoder that needs no time to compile."""
    program = [sys.executable, "-m", "server.cli", "serve", "--port", "0", "--model", "small", "--decoder", "greedy"]
    process = subprocess.Popen([*program, *options], stderr=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def until(process: subprocess.Popen[str], text: str) -> str:
    """Return the output up to a line with this text."""
    assert process.stderr is not None
    lines: list[str] = []
    while not lines or text not in lines[-1]:
        line = process.stderr.readline()
        assert line, "".join(lines)
        lines.append(line)
    return "".join(lines)


def test_serve_prints_its_address_who_may_use_it_and_how_to_stop() -> None:
    with serving() as process:
        said = until(process, "Ctrl-C")
        (url,) = re.findall(r"open +(http://\S+) in a browser", said)
        assert f"{url}/docs" in said
        for path in ("/", "/docs"):
            assert httpx.get(url + path, timeout=WAIT_S, trust_env=False).status_code == 200
        assert re.search(r"streams +about [1-9]\d* at a time, estimated for this machine at run time", said)
        assert re.search(r"keys +none are set: anyone who can reach this address can use it", said)
        assert re.search(r"/admin +closed: no admin key is set; .*--admin-local", said)
        assert re.search(r"stop +Ctrl-C drains: .*20 s.*a second Ctrl-C exits immediately", said)
        assert httpx.post(f"{url}/admin/drain", timeout=WAIT_S, trust_env=False).status_code == 403
        process.send_signal(signal.SIGINT)
        until(process, "drained")
        assert process.wait(timeout=WAIT_S) == 0


def test_json_logs_have_the_same_facts_in_the_start_line_and_no_other_text() -> None:
    with ServerProcess(program=("-c", REAL), model="small", decoder="greedy", max_streams=7) as server:
        line = server.wait_for("listening")
        assert line["docs"] == f"{line['url']}/docs"
        assert (line["streams"], line["streams_fixed"]) == (7, True)
        assert line["keys"].startswith("none are set")
        assert line["admin"].startswith("closed")
        assert all("raw" not in each for each in server.log)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"max_streams": 12}, "12 at a time, fixed by --max-streams or TUTTI_MAX_STREAMS"),
        ({"api_keys": ["k"]}, "every client needs a key"),
        ({"api_keys_file": "keys"}, "every client needs a key"),
        ({"admin_keys": ["k"], "admin_local": True}, "open with an admin key"),
        (
            {"admin_local": True},
            "open to this machine without a key; a proxy on this machine would open it to everyone:",
        ),
        ({"drain_timeout_s": 3_600}, "3600 s for open ones"),
        ({"vosk_port": 2_700}, "clients of the vosk port send no key"),
    ],
)
def test_each_fact_follows_the_settings(settings: dict[str, object], said: str) -> None:
    assert said in start_message(Settings(**settings), URL, 12)
    assert said not in start_message(Settings(), URL, 500)
