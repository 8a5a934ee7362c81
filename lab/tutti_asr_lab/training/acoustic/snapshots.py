"""Snapshots of a run, from which it resumes after any interruption. The last few are kept; damaged ones are refused.

A file is one line with the format and the digest of the content, then torch's serialization of the state. It is written
under a temporary name and renamed, so it is complete or absent; the digest detects later damage.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from model.checkpoint import write_atomically
from model.errors import TrainingError

FORMAT = b"tutti-snapshot-1"
KEPT = 3
_NAME = re.compile(r"update-(\d+)\.snapshot")


class Snapshots:
    """Snapshots in a folder, named by the number of updates. One process writes them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, update: int, state: dict[str, Any]) -> Path:
        """Write a snapshot and remove all but the last few. Raises: TrainingError if it cannot be written."""
        stream = io.BytesIO()
        torch.save(state, stream)
        content = stream.getvalue()
        path = self.folder / f"update-{update:08d}.snapshot"
        try:
            write_atomically(path, b"%s %s\n" % (FORMAT, hashlib.sha256(content).hexdigest().encode()) + content)
            found = self._paths()
            for old in [p for u, p in found if u > update] + [p for u, p in found if u <= update][:-KEPT]:
                old.unlink()  # later ones are damaged, or the run would have resumed from them
        except OSError as error:
            raise TrainingError(f"cannot write the snapshot {path}: {error.strerror}") from error
        return path

    def newest(self, announce: Callable[[str], None]) -> tuple[int, bytes] | None:
        """Number of updates and content of the newest valid snapshot, None if there are no snapshots.

        Announces damaged ones. Raises: TrainingError if all are damaged.
        """
        found = self._paths()
        for update, path in reversed(found):
            try:
                return update, read(path)
            except (OSError, ValueError) as error:
                announce(f"ignoring the snapshot {path}: {error}")
        if found:
            raise TrainingError(f"no snapshot in {self.folder} can be read: remove the folder to start the run again")
        return None

    def _paths(self) -> list[tuple[int, Path]]:
        if not self.folder.is_dir():
            return []
        named = ((_NAME.fullmatch(path.name), path) for path in self.folder.iterdir())
        return sorted((int(match[1]), path) for match, path in named if match)


@contextlib.contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Lock the folder against other runs while this context is open; remove it if it has nothing else at the end.

    Raises: TrainingError if another run has the lock, or if the folder cannot be created.
    """
    with contextlib.ExitStack() as held:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            fcntl.flock(held.enter_context((folder / "lock").open("w")), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise TrainingError(f"another run writes to {folder}: stop it first, or use another --out") from error
        except OSError as error:
            raise TrainingError(f"cannot write to {folder}: {error.strerror}") from error
        try:
            yield
        finally:
            if [path.name for path in folder.iterdir()] == ["lock"]:
                (folder / "lock").unlink()
                folder.rmdir()


def read(path: Path) -> bytes:
    """Content of a snapshot, for `state_of`. Raises: OSError; ValueError if it is damaged."""
    head, _, content = path.read_bytes().partition(b"\n")
    kind, _, digest = head.partition(b" ")
    if kind != FORMAT:
        raise ValueError(f"it does not begin with {FORMAT.decode()}")
    if hashlib.sha256(content).hexdigest().encode() != digest:
        raise ValueError("its content is damaged or truncated")
    return content


def state_of(content: bytes) -> dict[str, Any]:
    """Decode the saved state."""
    state: dict[str, Any] = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    return state
