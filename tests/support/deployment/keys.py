"""Key files as an operator creates them: deploy/README.md."""

from __future__ import annotations

import base64
import hashlib
import secrets
from pathlib import Path


def key_lines() -> tuple[str, dict[str, str]]:
    """Return an API key, and by file name the only line of each key file."""
    key = secrets.token_hex(24)
    return key, {
        "api_keys": hashlib.sha256(key.encode()).hexdigest(),
        "resume_keys": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
        "token_keys": secrets.token_hex(32),
    }


def write_keys(folder: Path) -> str:
    """Write the key files into a folder and return the API key."""
    key, lines = key_lines()
    for name, line in lines.items():
        (folder / name).write_text(f"{line}\n")
    return key
