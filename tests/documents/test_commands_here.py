"""Commands of the documents, run as a reader would type them, on small inputs; what they print is what is promised."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from loadtest import served
from model.recordings import read_manifest
from tests.support.audio.speech import samples
from tests.support.documents.blocks import ROOT, Command, blocks, commands, simple
from tests.support.needs import need_programs
from tests.support.networks.probes import make_probe
from tests.support.networks.turn_model import write_turn_model

WITHIN_S = 240.0  # of a command on a busy machine, which may compile
LINKED = ("clients", "deploy", "model")
SAMPLES = ROOT / "model" / "samples"
RELEASE = "sherpa-onnx-streaming-t-one-russian-2025-09-08"
SAMPLE_RATE, LOUD = 16_000, 500
KEY = "key-of-the-reader"


@contextmanager
def session(folder: Path) -> Iterator[Session]:
    """Yield a session in a prepared folder; its server is stopped on exit."""
    with tempfile.TemporaryFile() as output:
        made = Session(folder, output)
        try:
            yield made
        finally:
            if made.server is not None:
                served.stop(made.server)


class Session:
    """Runs commands as they stand, but for port 8080 and folders outside of its own."""

    def __init__(self, folder: Path, output: IO[bytes]) -> None:
        """`output`: file for what the servers print."""
        self.folder = folder
        self.server: subprocess.Popen[bytes] | None = None
        self._port = served.free_port()
        self._output = output

    def run(self, command: Command) -> str:
        """Run a command and return what it prints; `tutti serve` is left running until the next one.

        A command that needs a server which the document starts in a container gets one with default settings.
        """
        text = command.text.replace("127.0.0.1:8080", f"127.0.0.1:{self._port}")
        text = text.replace("/var/lib/tutti", str(self.folder / "var"))
        if command.plain == "make serve":
            text = f"{sys.executable} -m server.cli serve"
        if any("serve" in words for words in simple(text)):
            self._serve(text.rstrip(" &"))
            return ""
        if text != command.text and self.server is None and f"127.0.0.1:{self._port}" in text:
            self._serve("tutti serve")
        done = subprocess.run(
            ["bash", "-euc", text],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
        assert done.returncode == 0, f"{command.where}: {text}\n{done.stdout[-2_000:]}\n{done.stderr[-2_000:]}"
        return done.stdout

    def drained(self) -> None:
        """Stop the server, if any, by SIGTERM; it ends by itself."""
        if self.server is not None:
            server, self.server = self.server, None
            server.terminate()
            assert server.wait(timeout=WITHIN_S) == 0, self._log()

    def _serve(self, text: str) -> None:
        self.drained()
        command = ["bash", "-euc", f"exec env {text}"]  # so that a signal reaches the server
        self.server = served.start(command, self._output, self._environment, tree=self.folder)
        served.wait_until_ready(self.server, lambda: served.is_ready(self._port), self._output, within_s=WITHIN_S)

    def _log(self) -> str:
        self._output.seek(0)
        return self._output.read().decode(errors="replace")[-2_000:]

    @property
    def _environment(self) -> dict[str, str]:
        """Variables of a reader who has tutti on the path, with the port of this session."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TUTTI_")}
        return kept | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'clients'}",
            "TUTTI_PORT": str(self._port),
            "OMP_WAIT_POLICY": "passive",
            "NO_PROXY": "127.0.0.1",
            "key": KEY,
        }


def prepare(document: str, folder: Path) -> None:
    """Write the inputs that the commands of a document name."""
    folder.mkdir()
    for name in LINKED:
        (folder / name).symlink_to(ROOT / name)
    (folder / ".venv").symlink_to(Path(sys.executable).parents[1])
    INPUTS.get(document, lambda _: None)(folder)


def manifest(path: Path, *, language: str = "en", count: int = 2) -> None:
    """Write a manifest of shipped recordings."""
    rows = [
        {"audio": str(each.audio), "text": each.text, "speaker": each.speaker, "source": "x"}
        for each in read_manifest(SAMPLES / ("mandarin.jsonl" if language == "zh" else "samples.jsonl"))[:count]
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def _readme(folder: Path) -> None:
    shutil.copy(SAMPLES / "order.flac", folder / "talk.flac")
    soundfile.write(folder / "talk.wav", *soundfile.read(SAMPLES / "order.flac"))


def _contact_center(folder: Path) -> None:
    manifest(folder / "calls.jsonl")
    _records(folder / "usage")


def _training(folder: Path) -> None:
    manifest(folder / "calls-dev.jsonl")
    (folder / "build").mkdir()
    for name in ("calls", "calls-int8"):
        for suffix in ("safetensors", "json"):
            shutil.copy(ROOT / "model" / "weights" / f"tutti-gru.{suffix}", folder / "build" / f"{name}.{suffix}")
    lines = [each.text for each in samples()]
    (folder / "calls.txt").write_text("\n".join(lines[::2]) + "\n")
    (folder / "held-out.txt").write_text("\n".join(lines[1::2]) + "\n")


def _models(folder: Path) -> None:
    make_probe("t-one-ctc", folder / RELEASE)
    soundfile.write(folder / "call.wav", *soundfile.read(SAMPLES / "order.flac"))
    manifest(folder / "my-recordings.jsonl")
    soundfile.write(folder / "recording.wav", *soundfile.read(SAMPLES / "mandarin_beijing.flac"))
    manifest(folder / "dev.jsonl", language="zh")
    (folder / "names.txt").write_text("北京\n上海\n中国银行\n", encoding="utf-8")
    (folder / "grammars").mkdir()


def _turns(folder: Path) -> None:
    """Write recordings of two sentences with a pause between them, and a turn model whose answers have no meaning."""
    spoken = [trimmed(soundfile.read(each.audio, dtype="int16")[0]) for each in samples()]
    for name, shift in (("dev", 1), ("alnum_numbers", 3)):
        rows = []
        for number, first in enumerate(spoken):
            path = folder / f"{name}-{number}.wav"
            pause = np.zeros(4_000 + 1_000 * number, np.int16)
            soundfile.write(path, np.concatenate([first, pause, spoken[(number + shift) % len(spoken)]]), SAMPLE_RATE)
            rows.append({"audio": path.name, "text": "two sentences", "speaker": f"s{number}", "source": name})
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    write_turn_model(folder / "smart-turn-v3.2-cpu.onnx")


def trimmed(pcm: NDArray[np.int16]) -> NDArray[np.int16]:
    """Return a recording without the quiet before and after it, (S,)."""
    loud = np.flatnonzero(np.abs(pcm.astype(int)) > LOUD)
    return pcm[loud[0] : loud[-1] + 1]


def _speakers(folder: Path) -> None:
    for number in (1, 2):
        soundfile.write(folder / f"ada-{number}.wav", *soundfile.read(SAMPLES / "demo.flac"))


def _usage(folder: Path) -> None:
    (folder / "api_keys").write_text(f"{hashlib.sha256(KEY.encode()).hexdigest()}  bank\n")
    _records(folder / "var" / "usage")


def _records(folder: Path) -> None:
    """Write the record of docs/usage.md, as another server would."""
    [record] = [text for _, kind, text in blocks("docs/usage.md") if kind == "json"]
    folder.mkdir(parents=True)
    (folder / "usage-other.jsonl").write_text(record, encoding="utf-8")


INPUTS: Mapping[str, Callable[[Path], None]] = {
    "README.md": _readme,
    "docs/contact-center.md": _contact_center,
    "docs/training.md": _training,
    "docs/models.md": _models,
    "docs/speakers.md": _speakers,
    "docs/usage.md": _usage,
    "docs/voice-agents.md": _turns,
}


RUN: Mapping[str, tuple[str, ...]] = {  # beginnings of the commands that are run; others are only parsed
    "README.md": ("make serve", "curl ", ".venv/bin/tutti transcribe ", ".venv/bin/tutti model fetch"),
    "SECURITY.md": ("tutti keys new ", "tutti serve --api-keys-file "),
    "deploy/README.md": ("tutti transcribe ",),
    "docs/contact-center.md": (
        *("python -", "tutti transcribe ", "curl ", "tutti evaluate ", "TUTTI_TWILIO_AUTH_TOKEN=", "tutti keys new "),
        *(
            "tutti serve --audiosocket-port ",
            "tutti usage ",
            "tutti keys receipt ",
            "TUTTI_RECEIPT_KEY_FILE=",
            "printf ",
            "tutti serve --written-forms ",
        ),
    ),
    "docs/determinism.md": ("python -m model.evaluation.digest",),
    "docs/training.md": (
        *("tutti evaluate ", "python -m tutti_asr_lab.training.acoustic.averaging ", "tutti serve ", "tutti lm train "),
        "tutti lm perplexity ",
    ),
    "docs/sizing.md": ("tutti serve",),
    "docs/measured.md": (".venv/bin/tutti serve ",),
    "docs/models.md": (
        *("tutti model check ", "tutti serve", "tutti evaluate --model ", "tutti evaluate --language "),
        *("tutti transcribe ", "tutti lm train "),
    ),
    "docs/own-models.md": ("tutti export DIR",),
    "docs/speakers.md": ("tutti serve --speakers", "tutti voice "),
    "docs/usage.md": ("TUTTI_USAGE_LOG=", "tutti usage "),
    "docs/voice-agents.md": ("tutti serve ",),
}
PRINTS: Mapping[str, str] = {  # what is printed, by the beginning of the command
    "tutti usage ": r"^bank\b",
    "tutti transcribe talk.flac": "where is my order",
    "tutti transcribe call.wav --multichannel --channel-names Caller,Agent": r"^Caller: .*\nAgent: ",
    "tutti voice enroll ": r"^ada: enrolled from \d",
    "tutti voice list ": r"^ada: .* for the key bank$",
    "tutti evaluate ": "0\\.\\d+",
    "curl -f -X POST ": r'^\{"uuid":"40325ec2-.*","expires_in":120\}$',
    "curl --data-binary ": r'"transcript": ?"[^"]*(where is my order|account number)',
}
pytestmark = pytest.mark.timeout(5 * WITHIN_S)


@pytest.mark.parametrize("document", RUN)
def test_the_commands_of_a_document_run_in_their_order(document: str, tmp_path: Path) -> None:
    need_programs("bash", "curl")
    chosen = [each for each in commands() if each.document == document and each.plain.startswith(RUN[document])]
    assert {start for start in RUN[document] for each in chosen if each.plain.startswith(start)} == {*RUN[document]}
    prepare(document, tmp_path / "reader")
    with session(tmp_path / "reader") as reader:
        for command in chosen:
            check_printed(command, reader.run(command))
        reader.drained()


def check_printed(command: Command, printed: str) -> None:
    """Check what a command prints."""
    for start, pattern in PRINTS.items():
        if command.plain.removeprefix(".venv/bin/").startswith(start) and "--out" not in command.plain:
            assert re.search(pattern, printed, re.IGNORECASE | re.MULTILINE), f"{command.where}: {printed[-2_000:]}"
