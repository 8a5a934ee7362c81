"""The command line's and the JavaScript client with cut connections to real servers: no word is lost or repeated."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from server.resume.tickets import new_key
from tests.support.clients.cutting_proxy import CuttingProxy
from tests.support.servers.live_server import LiveServer
from tests.support.servers.recognizers.spelling import silence, spell

ROOT = Path(__file__).parents[2]
KEY = new_key()
TEXTS = ("hello there", "the second sentence is longer than the first", "three", "and here it ends")
CUTS = (3_000, 9_000, 9_000)
WITHIN_S = 60.0


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[str]]:
    with ExitStack() as stack:
        yield [stack.enter_context(LiveServer(resume_keys=(KEY,))).host for _ in range(2)]


@pytest.fixture(scope="module")
def audio() -> np.ndarray:
    return np.concatenate([part for text in TEXTS for part in (spell(text), silence(0.9))])


def test_tutti_transcribe_prints_the_same_text_when_its_server_is_killed(
    hosts: list[str], audio: np.ndarray, tmp_path: Path
) -> None:
    recording = tmp_path / "speech.wav"
    soundfile.write(recording, audio, 16_000)

    def finals(url: str) -> list[Any]:
        command = [sys.executable, "-m", "server.cli", "transcribe", str(recording), "--json", "--resumable"]
        done = subprocess.run(
            [*command, "--url", url], cwd=ROOT, capture_output=True, text=True, timeout=WITHIN_S, check=False
        )
        assert done.returncode == 0, done.stderr
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        return [(line["start"], line["duration"], line["text"], line["words"]) for line in lines if "start" in line]

    whole = finals(f"ws://{hosts[0]}")
    with CuttingProxy(hosts, CUTS).running() as proxy:
        moved = finals(proxy.url)
    assert proxy.cut == len(CUTS)
    assert moved == whole
    assert " ".join(text for _, _, text, _ in whole if text) == " ".join(TEXTS)
