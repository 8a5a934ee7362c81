"""Wheels built from the checkout and installed outside it serve and demonstrate the shipped model."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import pytest

from loadtest.served import free_port
from model.machine.native import kinds_here
from tests.ecosystem.recordings import FILES, plain, text
from tests.support.audio.speech import ROOT
from tests.support.needs import need_package, need_programs

PACKAGES = ("batching", "loadtest", "model", "server")
SOURCES = (*PACKAGES, "clients", "lab", "pyproject.toml", "README.md", "LICENSE", "NOTICE")
BUILD_WITHIN_S = READY_WITHIN_S = DEMO_WITHIN_S = 200.0  # on a busy machine, including compilation of the beam search
CODE_WITHIN_S = 900.0
COMPILING_S = 30.0  # of processor time for a first command without machine code, on an EPYC; more on others
WITHOUT_COMPILER = """
import sys
sys.modules["numba"] = sys.modules["llvmlite"] = sys.modules["onnx"] = sys.modules["onnxruntime"] = None
from server.cli import main
sys.argv[0] = "tutti"
main()
"""
DATA = {
    "model/samples/demo.flac",
    "model/samples/samples.jsonl",
    "model/weights/tutti-fast.json",
    "model/weights/tutti-gru.json",
    "model/weights/tutti-gru.safetensors",
    "model/weights/tutti.json",
    "model/weights/tutti.safetensors",
    "model/weights/tutti-words.arpa.gz",
    "model/weights/tutti-words.lexicon.gz",
    "server/asyncapi.yaml",
    "server/tools/fetch/releases.toml",
    "server/web/index.html",
}
LAB_DATA = {
    "tutti_asr_lab/simulation/calibration.json",
    "tutti_asr_lab/training/acoustic/recipes/small.json",
    "tutti_asr_lab/training/synthesis/vocabulary.txt",
}
pytestmark = pytest.mark.timeout(300)
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Build all wheels by way of source distributions, from a copy of the checkout: builds write to their source."""
    need_package("build")
    folder = tmp_path_factory.mktemp("wheels")
    left_out = shutil.ignore_patterns("__pycache__", "*.egg-info", "build", "*.lm")
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / "checkout" / name, ignore=left_out)
        else:
            shutil.copy(source, folder / "checkout")
    for source in (folder / "checkout", folder / "checkout" / "clients", folder / "checkout" / "lab"):
        words = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, source]
        done = subprocess.run(words, capture_output=True, text=True, timeout=BUILD_WITHIN_S, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    shutil.rmtree(folder / "checkout")
    return sorted(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheels: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the `bin` folder of an environment with the wheels; other packages come from this environment."""
    binaries, own = install(wheels, tmp_path_factory.mktemp("installed"))
    search = Path("model", "ctc", "search")
    take_compiled_code(ROOT / search, own / search)
    return binaries


@pytest.fixture(scope="module")
def installed_with_code(wheels: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the `bin` folder of an environment whose wheel has machine code for this processor."""
    folder = tmp_path_factory.mktemp("with-code")
    program = shutil.copy(wheels[0], folder)
    words = [sys.executable, "-m", "model.prebuilt.wheel", program, "--kind", kinds_here({})[0].name]
    subprocess.run(words, cwd=ROOT, check=True, timeout=CODE_WITHIN_S)
    return install([program, *wheels[1:]], folder)[0]


def install(wheels: list[Path], folder: Path) -> tuple[Path, Path]:
    """Install wheels in a new environment; return its `bin` and its packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    words = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--no-deps", *wheels]
    subprocess.run(words, check=True, timeout=BUILD_WITHIN_S)
    [own] = (folder / "lib").glob("python3*/site-packages")
    (own / "third_parties.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    return folder / "bin", own


def take_compiled_code(source: Path, target: Path) -> None:
    """Copy the checkout's compiled beam search, if any; numba accepts it for files of equal size and time."""
    for path in source.glob("*.py"):
        os.utime(target / path.name, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    (target / "__pycache__").mkdir(exist_ok=True)
    for path in (source / "__pycache__").glob("*.nb[ci]"):
        shutil.copy2(path, target / "__pycache__")


def outside(installed: Path) -> dict[str, str]:
    """Return environment variables without references to the checkout."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TUTTI_", "PYTHON"))}
    return kept | {"PATH": f"{installed}:{os.environ['PATH']}", "HOME": str(installed.parent)}


@contextmanager
def serving(installed: Path, folder: Path) -> Iterator[int]:
    """Start `tutti serve` on a free port and wait until it is ready."""
    port = free_port()
    words = [installed / "tutti", "serve", "--host", "127.0.0.1", "--port", str(port)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(words, cwd=folder, env=outside(installed), stdout=log, stderr=log)
    try:
        deadline_s = time.monotonic() + READY_WITHIN_S
        while not is_ready(port):
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline_s, (folder / "log").read_text()
            time.sleep(0.2)
        yield port
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0, (folder / "log").read_text()
    finally:
        process.kill()
        process.wait()


def is_ready(port: int) -> bool:
    try:
        with _direct.open(f"http://127.0.0.1:{port}/readyz", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_the_wheels_contain_all_packages_and_data_and_nothing_else(wheels: list[Path]) -> None:
    program, client, lab = wheels
    names = set(zipfile.ZipFile(program).namelist())
    sources = {path.relative_to(ROOT).as_posix() for top in PACKAGES for path in (ROOT / top).rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == sources
    assert names >= DATA
    assert not [name for name in names if name.startswith("loadtest/results/") or name.endswith(".lm")]
    assert {name.split("/")[0].removesuffix(f"-{version('tutti-asr')}.dist-info") for name in names} == {
        *PACKAGES,
        "tutti_asr",
    }
    assert "tutti_asr_client/py.typed" in zipfile.ZipFile(client).namelist()
    assert set(zipfile.ZipFile(lab).namelist()) >= LAB_DATA


def test_the_installed_program_is_used(installed: Path, tmp_path: Path) -> None:
    words = [installed / "python", "-c", "import server, tutti_asr_client as c; print(server.__file__, c.__file__)"]
    done = subprocess.run(words, cwd=tmp_path, env=outside(installed), capture_output=True, text=True, check=True)
    assert [Path(name).is_relative_to(installed.parent) for name in done.stdout.split()] == [True, True]
    words = [installed / "tutti", "--version"]
    done = subprocess.run(words, cwd=tmp_path, env=outside(installed), capture_output=True, text=True, check=True)
    assert done.stdout == f"tutti {version('tutti-asr')}\n"


def test_the_installed_server_transcribes(installed: Path, tmp_path: Path) -> None:
    served = {"/": "<html", "/docs": "swagger", "/asyncapi.yaml": "asyncapi", "/openapi.json": version("tutti-asr")}
    with serving(installed, tmp_path) as port:
        words = [installed / "tutti", "transcribe", FILES["order"], "--json", "--url", f"ws://127.0.0.1:{port}"]
        done = subprocess.run(words, cwd=tmp_path, env=outside(installed), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert plain(json.loads(done.stdout.splitlines()[-1])["text"]) == text("order")
        for path, said in served.items():
            with _direct.open(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
                assert said in answer.read().decode(), path


@pytest.mark.timeout(CODE_WITHIN_S)
def test_a_wheel_with_code_transcribes_at_once_and_without_a_compiler(
    installed_with_code: Path, tmp_path: Path
) -> None:
    words = [installed_with_code / "python", "-c", WITHOUT_COMPILER, "transcribe", FILES["order"], "--json"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        words, cwd=tmp_path, env=outside(installed_with_code), capture_output=True, text=True, check=False
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (done.returncode, done.stderr) == (0, "")
    assert plain(json.loads(done.stdout.splitlines()[-1])["text"]) == text("order")
    assert after.ru_utime - before.ru_utime < COMPILING_S / 3


@pytest.mark.timeout(CODE_WITHIN_S)
def test_a_processor_without_code_is_compiled_for_with_a_line_that_says_so(
    installed_with_code: Path, tmp_path: Path
) -> None:
    variables = outside(installed_with_code) | {"NUMBA_CPU_NAME": "x86-64-v2"}
    words = [installed_with_code / "tutti", "transcribe", FILES["order"], "--json"]
    done = subprocess.run(words, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert plain(json.loads(done.stdout.splitlines()[-1])["text"]) == text("order")
    assert done.stderr.startswith("tutti: compiling for this processor, once for each installation")
    words = [installed_with_code / "python", "-c", WITHOUT_COMPILER, *words[1:]]
    done = subprocess.run(words, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"tutti: this processor, .* needs numba: pip install 'tutti-asr\[compiler\]'\n", done.stderr)


def test_the_installed_demo_recognizes_every_word(installed: Path, tmp_path: Path) -> None:
    words = [installed / "tutti", "demo"]
    done = subprocess.run(
        words, cwd=tmp_path, env=outside(installed), capture_output=True, text=True, timeout=DEMO_WITHIN_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search("the transcript is correct", done.stdout)


def test_the_commit_of_another_repository_is_not_reported(installed: Path) -> None:
    need_programs("git")
    git = ["git", "-C", str(installed.parent), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "--quiet"], ["commit", "--quiet", "--allow-empty", "--message=theirs"]):
        subprocess.run([*git, *words], check=True)
    words = [
        installed / "python",
        "-c",
        "from loadtest.reports.environment import describe; print(repr(describe(0).commit))",
    ]
    done = subprocess.run(words, cwd="/", env=outside(installed), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "''"
