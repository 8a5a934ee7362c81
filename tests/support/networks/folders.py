"""Folders of generated networks that live as long as the process of the tests."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp


@cache
def _root() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="tutti-probes-")  # removed at the exit of the interpreter


def process_folder(name: str) -> Path:
    """Return a new folder for `name`, which is removed when this process ends."""
    return Path(mkdtemp(prefix=f"{name}-", dir=_root().name))
