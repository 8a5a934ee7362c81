"""`tutti listen`: PortAudio and ALSA are real; a recording takes the place of the device."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Self

import numpy as np
import pytest

from tests.support.needs import missing
from tests.support.servers.live_server import LiveServer
from tests.support.servers.recognizers.spelling import silence, spell
from tutti_asr_client.files.microphone import Microphone, MicrophoneError

RATE = 16_000
DEVICES = """
pcm.nothing {{ type null }}
pcm.recorded {{ type file slave.pcm nothing file /dev/null infile {recording} format raw }}
pcm.!default {{ type plug slave {{ pcm recorded format S16_LE rate {rate} channels 1 }} }}
"""


@pytest.fixture(autouse=True, scope="module")
def portaudio() -> None:
    try:
        import sounddevice  # noqa: F401
    except (ImportError, OSError) as error:
        missing(f"PortAudio: {error}")


@pytest.fixture
def server(live_server: Callable[..., LiveServer]) -> list[str]:
    return ["--url", f"ws://{live_server().host}", "--retry", "0"]


def start(folder: Path, *arguments: str, text: str = "hello", rate: int = RATE) -> subprocess.Popen[str]:
    """Start the command on a machine whose only device says `text` and is then quiet."""
    recording, config = folder / "speech.raw", folder / "asound.conf"
    np.concatenate([spell(text, rate), silence(60, rate)]).astype("<i2").tofile(recording)
    config.write_text(DEVICES.format(recording=recording, rate=rate))
    command = [sys.executable, "-m", "server.cli", "listen", *arguments]
    environment = os.environ | {"ALSA_CONFIG_PATH": str(config)}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True, encoding="utf-8"
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, problems = process.communicate(timeout=60)
    return process.returncode, out, problems


def test_what_the_device_records_is_transcribed(server: list[str], tmp_path: Path) -> None:
    code, out, problems = ended(start(tmp_path, *server, "--seconds", "2"))
    assert (code, out) == (0, "hello\n"), problems
    code, out, problems = ended(start(tmp_path, *server, "--seconds", "2", "--json"))
    final, *_, summary = map(json.loads, out.splitlines())
    assert (code, final["text"], final["file"]) == (0, "hello", "microphone"), problems
    assert (summary["text"], summary["duration_s"]) == ("hello", 2.0)


def test_an_interruption_ends_the_audio_and_keeps_its_words(server: list[str], tmp_path: Path) -> None:
    process = start(tmp_path, *server)
    assert process.stdout is not None
    assert process.stdout.readline() == "hello\n"
    process.send_signal(signal.SIGINT)
    code, out, problems = ended(process)
    assert (code, out) == (0, ""), problems


def test_a_device_that_stops_ends_the_audio_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import sounddevice

    class Unplugged:
        def __init__(self, **_: object) -> None:
            self.left = 2

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None: ...

        def read(self, samples: int) -> tuple[bytes, bool]:
            self.left -= 1
            if self.left < 0:
                raise sounddevice.PortAudioError("Unanticipated host error")
            return bytes(2 * samples), self.left == 0

    monkeypatch.setattr(sounddevice, "RawInputStream", Unplugged)
    microphone = Microphone(RATE, asyncio.Event())

    async def read() -> None:
        async for _ in microphone:
            pass

    with pytest.raises(MicrophoneError, match="default input: stopped recording"):
        asyncio.run(read())
    assert (microphone.duration_s, microphone.lost) == (0.16, 1)


def test_errors_say_what_to_do(server: list[str], tmp_path: Path) -> None:
    code, out, problems = ended(start(tmp_path, "--input", "radio"))
    assert (code, out) == (1, "")
    assert problems.startswith("tutti: input radio: cannot be opened (")
    assert problems.endswith("; --list-inputs shows the inputs of this machine\n")
    code, out, problems = ended(start(tmp_path, "--list-inputs"))
    assert (code, problems) == (0, "")
    assert next(line for line in out.splitlines() if line.startswith("*")).split()[2] == "default"
    code, _, problems = ended(start(tmp_path, "--url", "ws://127.0.0.1:9", "--retry", "0", "--seconds", "1"))
    assert code == 1
    assert "127.0.0.1:9" in problems
