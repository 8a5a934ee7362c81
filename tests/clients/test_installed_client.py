"""The client library in an environment without the server: it streams a recording to a server process."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ecosystem.recordings import audio, plain, text
from tests.ecosystem.serving import ROOT, ServerProcess
from tests.support.needs import missing

INSTALL_WITHIN_S = 100.0
NOT_OF_THE_CLIENT = ("torch", "numba", "fastapi", "uvicorn", "soundfile", "server", "model")
UNREACHABLE_INDEX = re.compile(r"No matching distribution|ConnectionError|NewConnectionError|ReadTimeout")

SCRIPT = """
import asyncio, importlib.util, json, sys
from pathlib import Path
from tutti_asr_client import Results, open_stream

async def main(url, recording):
    finals = []
    async with open_stream(url, api_key="none") as stream:
        await stream.send(Path(recording).read_bytes())
        await stream.close_stream()
        async for message in stream:
            if isinstance(message, Results) and message.is_final:
                finals.append(message.text)
    return " ".join(finals)

heavy = [name for name in sys.argv[3:] if importlib.util.find_spec(name)]
said = asyncio.run(main(*sys.argv[1:3]))
print(json.dumps({"text": said, "heavy": heavy, "file": sys.modules["tutti_asr_client"].__file__}))
"""


@pytest.fixture(scope="module")
def fresh_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the interpreter of an environment in which only `clients/` is installed."""
    folder = tmp_path_factory.mktemp("client")
    left_out = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    source = shutil.copytree(ROOT / "clients", folder / "clients", ignore=left_out)  # pip writes into what it builds
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile", source],
        capture_output=True,
        text=True,
        timeout=INSTALL_WITHIN_S,
        check=False,
    )
    if done.returncode and UNREACHABLE_INDEX.search(done.stderr):
        missing("no package index to install the client's dependencies from")
    assert done.returncode == 0, done.stderr
    return python


@pytest.fixture(scope="module")
def open_server() -> Iterator[ServerProcess]:
    """A server that asks for no keys."""
    with ServerProcess(api_keys="[]") as process:
        yield process


def test_the_installed_client_streams_a_recording_without_the_servers_packages(
    fresh_python: Path, open_server: ServerProcess, tmp_path: Path
) -> None:
    (tmp_path / "order.raw").write_bytes(audio("order"))
    url = f"ws://127.0.0.1:{open_server.port}"
    done = subprocess.run(
        [fresh_python, "-I", "-c", SCRIPT, url, tmp_path / "order.raw", *NOT_OF_THE_CLIENT],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert plain(printed["text"]) == text("order")
    assert printed["heavy"] == []
    assert Path(printed["file"]).is_relative_to(fresh_python.parents[1])


def test_importing_the_client_loads_nothing_of_its_files_extra() -> None:
    code = "import sys, tutti_asr_client; print(sorted({'rich', 'soundfile', 'soxr', 'torch'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
