"""Write the locked requirements of the images: `python deploy/lock.py`; needs `uv` (tested with 0.13).

Run it for a release, review the difference and commit it.
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
"""Build backend of the wheels; locked too, since the image builds without isolation."""

SERVING = ("--extra", "otel", "--extra", "published")
LOCKS = {
    "requirements.lock": SERVING,
    "requirements-torch.lock": (*SERVING, "--extra", "torch", "--torch-backend", "cpu"),
    "requirements-cuda.lock": (*SERVING, "--extra", "torch"),
}
"""By lock, options with the extras that its image has. All are resolved at once, because the other images install their
lock on top of the first one.
"""

HEADER = """\
# Written by deploy/lock.py from pyproject.toml: every package of the image, with the hash of each of its files.
"""


def command(needs: Path, out: Path, options: Sequence[str]) -> list[str]:
    """Return the resolver's command line for one image."""
    return [
        *("uv", "pip", "compile", "--quiet", "--generate-hashes", "--no-header", "--no-emit-index-url"),
        *("--python-version", "3.11", "--python-platform", PLATFORM, "--no-annotate", "--upgrade"),
        *options,
        *("--no-emit-package", CLIENT),
        *("--output-file", str(out), str(HERE.parent / "pyproject.toml"), str(needs)),
    ]


def main() -> None:
    """Write the files; exits with uv's code if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        for name, options in LOCKS.items():
            needs, out = Path(folder) / "needs.txt", Path(folder) / name
            needs.write_text(f"{BUILD}\n")
            code = subprocess.run(command(needs, out, options), check=False).returncode  # noqa: S603 - our own words
            if code:
                sys.exit(code)
            (HERE / name).write_text(HEADER + out.read_text())
            print(f"wrote {HERE / name}")  # noqa: T201


if __name__ == "__main__":
    main()
