"""Runs every block of `clients/README.md` unchanged except for the port: each prints the recording's text."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ecosystem.driving import need
from tests.ecosystem.environments import NODE, python_of
from tests.ecosystem.recordings import plain, text
from tests.ecosystem.serving import ROOT, ServerProcess
from tests.support.needs import need_programs

PAGE = ROOT / "clients" / "README.md"
BLOCK = re.compile(r"^```(\w+) ?(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = BLOCK.findall(PAGE.read_text())
WITHIN_S = 60.0
PROGRAMS = {"sh": ("curl",), "js": ("node",), "python": ()}


def name_of(block: tuple[str, str, str]) -> str:
    """Return the test id of a block, from what it imports or calls."""
    language, environment, code = block
    known = (
        "tutti_asr_client.sync", "tutti_asr_client", "AsyncDeepgram", "DeepgramClient", "tutti.js",
        "tutti transcribe", "curl", "websockets",
    )  # fmt: skip
    about = next((name for name in (*known, "vosk", "openai") if name in code), "")
    turns = "-turns" if "listen.v2" in code or "/v2/listen" in code else ""
    whole = "-transcribe" if "transcribe(" in code else ""
    return f"{language}-{environment or about or 'first'}{turns}{whole}"


@pytest.fixture(scope="module")
def open_server() -> Iterator[ServerProcess]:
    """A server that asks for no keys."""
    with ServerProcess(api_keys="[]") as process:
        yield process


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A writable folder with links to the checkout, in which the page's first block was run."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("clients", "model", "server"):
        (folder / name).symlink_to(ROOT / name)
    run(BLOCKS[0], folder)
    assert (folder / "speech.wav").exists()
    return folder


def run(block: tuple[str, str, str], folder: Path, port: int = 8080) -> str:
    """Run a block and return what it prints."""
    language, environment, code = block
    need_programs(*PROGRAMS[language])
    if language == "js" and not (folder / "node_modules").exists():
        (folder / "node_modules").symlink_to(need(NODE) / "node_modules")
    script = folder / f"block.{'mjs' if language == 'js' else language}"
    script.write_text(code.replace("127.0.0.1:8080", f"127.0.0.1:{port}"))
    python = str(python_of(need(environment))) if environment else sys.executable
    command = {"sh": ["sh", "-eu"], "js": ["node"], "python": [python]}[language]
    variables = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": "" if environment else str(folder),
        "NO_PROXY": "127.0.0.1",
    }
    done = subprocess.run(
        [*command, str(script)],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("block", BLOCKS[1:], ids=name_of)
def test_a_block_prints_the_recordings_text(
    block: tuple[str, str, str], checkout: Path, open_server: ServerProcess
) -> None:
    printed = run(block, checkout, open_server.port)
    assert text("order") in plain(printed), printed


def test_every_client_has_a_block() -> None:
    names = [name_of(block) for block in BLOCKS[1:]]
    assert len(set(names)) == len(names)
    known = {"livekit", "pipecat", "vosk", "openai", "tutti.js", "curl"}
    known |= {f"tutti_asr_client{form}{call}" for form in ("", ".sync") for call in ("", "-transcribe")}
    turns = {"DeepgramClient-turns", "livekit-turns", "pipecat-turns"}
    assert {name.partition("-")[2] for name in names} >= known | turns
