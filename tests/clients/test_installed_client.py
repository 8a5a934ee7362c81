"""The client library in an environment without the server: the blocks of its page against a server process."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import wave
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ecosystem.recordings import RATE_HZ, audio, plain, text
from tests.ecosystem.serving import ROOT, ServerProcess
from tests.support.needs import missing

INSTALL_WITHIN_S = 100.0
NOT_OF_THE_CLIENT = ("torch", "numba", "fastapi", "uvicorn", "soundfile", "server", "model")
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
UNREACHABLE_INDEX = re.compile(r"No matching distribution|ConnectionError|NewConnectionError|ReadTimeout")

OWN = [code for code in BLOCK.findall((ROOT / "clients" / "README.md").read_text()) if "tutti_asr_client" in code]
"""The blocks of the client's page that use this library."""


def name_of_call(code: str) -> str:
    """Return the test id of a block."""
    return "-transcribe" if "transcribe(" in code else "-stream"


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


def test_it_is_alone_in_its_environment(fresh_python: Path, tmp_path: Path) -> None:
    code = """
import importlib.util, json, sys, tutti_asr_client
print(json.dumps([tutti_asr_client.__file__, [name for name in sys.argv[1:] if importlib.util.find_spec(name)]]))
"""
    words = [fresh_python, "-I", "-c", code, *NOT_OF_THE_CLIENT]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    file, heavy = json.loads(done.stdout)
    assert Path(file).is_relative_to(fresh_python.parents[1])
    assert heavy == []


@pytest.mark.parametrize("block", OWN, ids=lambda code: ("sync" if "sync" in code else "async") + name_of_call(code))
def test_a_block_of_its_page_runs_after_a_plain_install(
    block: str, fresh_python: Path, open_server: ServerProcess, tmp_path: Path
) -> None:
    (tmp_path / "block.py").write_text(block.replace("127.0.0.1:8080", f"127.0.0.1:{open_server.port}"))
    with wave.open(str(tmp_path / "speech.wav"), "wb") as speech:
        speech.setparams((1, 2, RATE_HZ, 0, "NONE", ""))
        speech.writeframes(audio("order"))
    done = subprocess.run(
        [fresh_python, "-I", "block.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert plain(done.stdout) == text("order")


def test_the_page_has_a_block_of_each_form() -> None:
    assert len(OWN) == 4


def test_importing_the_client_loads_nothing_of_its_files_extra() -> None:
    code = "import sys, tutti_asr_client; print(sorted({'rich', 'soundfile', 'soxr', 'torch'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
