"""Writes the locked requirements of the images: `python deploy/lock.py`; needs `uv` (tested with 0.13).

A release runs it, looks at the difference and commits it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
CLIENT = "tutti-asr-client"  # resolved from clients/ ([tool.uv.sources]); the image builds it, so it has no hash
PLATFORM = "x86_64-manylinux_2_28"

BUILD = "setuptools>=77"
"""Build backend of the wheels: the image builds without isolation, so that it is locked too."""

LOCKS = {"requirements.lock": ("otel",), "requirements-cuda.lock": ("otel", "torch")}
"""By lock, the extras that its image has."""

HEADER = """\
# Written by deploy/lock.py from pyproject.toml: every package of the image, with the hash of each of its files.
"""


def command(needs: Path, out: Path, extras: Sequence[str]) -> list[str]:
    """The resolver's command line for one image."""
    return [
        *("uv", "pip", "compile", "--quiet", "--generate-hashes", "--no-header", "--no-emit-index-url"),
        *("--python-version", "3.11", "--python-platform", PLATFORM, "--no-annotate", "--upgrade"),
        *(part for extra in extras for part in ("--extra", extra)),
        *("--no-emit-package", CLIENT),
        *("--output-file", str(out), str(HERE.parent / "pyproject.toml"), str(needs)),
    ]


def main() -> None:
    """Write both; the exit code is uv's own if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        for name, extras in LOCKS.items():
            needs, out = Path(folder) / "needs.txt", Path(folder) / name
            needs.write_text(f"{BUILD}\n")
            code = subprocess.run(command(needs, out, extras), check=False).returncode  # noqa: S603 - our own words
            if code:
                sys.exit(code)
            (HERE / name).write_text(HEADER + out.read_text())
            print(f"wrote {HERE / name}")  # noqa: T201


if __name__ == "__main__":
    main()
