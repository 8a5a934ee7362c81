"""A base image of Debian's packages, for a machine that reaches no registry of images.

It stands for the Dockerfile's `python:3.11-slim-bookworm`: the same Debian 12 without recommended packages, with
Debian's own Python 3.11 in /usr instead of one in /usr/local. Needs Linux, root, mmdebstrap and Debian's mirror.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.image.engine import Engine, EngineError

SUITE = "bookworm"
PACKAGES = ("ca-certificates", "python3.11-venv")  # the second one brings pip
PYTHON = "python3.11"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LEFT_OUT = ("/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/man/*")  # as in the slim images
MADE_WITHIN_S = 1_800.0  # of another architecture, emulated; of this one within a minute


def base_image(engine: Engine, architecture: str) -> str:
    """Return the name of the base image for Debian's name of an architecture; it is made once.

    Raises: EngineError, TimeoutExpired.
    """
    name = f"localhost/{PYTHON}-{SUITE}:{architecture}"
    if not engine.has_image(name):
        archive = engine.folder / f"base-{architecture}.tar"
        make_root(archive, architecture)
        settings = ("--change", f"ENV PATH={SYSTEM_PATH}", "--change", f'CMD ["{PYTHON}"]')
        engine.call("import", "--arch", architecture, *settings, str(archive), name, within_s=MADE_WITHIN_S)
        archive.unlink()
    return name


def make_root(archive: Path, architecture: str) -> None:
    """Write a root file system as a tar. Raises: EngineError, TimeoutExpired."""
    words = ["mmdebstrap", "--quiet", "--variant=minbase", f"--architectures={architecture}"]
    words += [f"--include={','.join(PACKAGES)}", *(f"--dpkgopt=path-exclude={place}" for place in LEFT_OUT)]
    words += [f'--customize-hook=ln -s {PYTHON} "$1/usr/bin/python"', SUITE, str(archive)]
    archive.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(words, capture_output=True, text=True, timeout=MADE_WITHIN_S, check=False)
    if done.returncode:
        raise EngineError(f"mmdebstrap: {done.stderr.strip()}")
