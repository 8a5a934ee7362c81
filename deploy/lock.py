"""Write the locked requirements of the images: `python deploy/lock.py`; needs `uv` (tested with 0.13).

Defines the extras of the images. Run it for a release, review the difference and commit it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
EXTRAS = ("media", "otel", "vad")
CLIENT = "tutti-asr-client"  # resolved from clients/ ([tool.uv.sources]); the image builds it, so it has no hash
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
PLATFORM = "x86_64-manylinux_2_28"

BUILD = "setuptools>=77"
"""Build backend of the wheels; locked too, since the image builds without isolation."""

LOCKS = {"requirements.lock": "torch==2.13.0+cpu", "requirements-cuda.lock": "torch==2.13.0"}

HEADER = """\
# Written by deploy/lock.py from pyproject.toml: every package of the image, with the hash of each of its files.
"""


def command(needs: Path, out: Path, torch: str) -> list[str]:
    """Return the resolver's command line for one image."""
    extras = [part for extra in EXTRAS for part in ("--extra", extra)]
    # Wheels in a local folder (PIP_FIND_LINKS) are used instead of torch's index.
    places = ["--find-links", links] if (links := os.environ.get("PIP_FIND_LINKS")) else ["--index", TORCH_INDEX]
    return [
        *("uv", "pip", "compile", "--quiet", "--generate-hashes", "--no-header", "--no-emit-index-url"),
        *("--python-version", "3.11", "--python-platform", PLATFORM, "--no-annotate", "--upgrade"),
        *(places if "+" in torch else ()),
        *extras,
        *("--no-emit-package", CLIENT),
        *("--output-file", str(out), str(HERE.parent / "pyproject.toml"), str(needs)),
    ]


def main() -> None:
    """Write both files; exits with uv's code if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        for name, torch in LOCKS.items():
            needs, out = Path(folder) / "needs.txt", Path(folder) / name
            needs.write_text(f"{BUILD}\n{torch}\n")
            code = subprocess.run(command(needs, out, torch), check=False).returncode  # noqa: S603 - fixed arguments
            if code:
                sys.exit(code)
            (HERE / name).write_text(HEADER + out.read_text())
            print(f"wrote {HERE / name}")  # noqa: T201


if __name__ == "__main__":
    main()
