"""Snapshots of a run: files that it goes on from, whatever ended it. The last few are kept, damaged ones refused.

A file is one line with the format and the digest of what follows, then torch's serialisation of the state. It is
written beside its name and renamed, so that it is whole or not there; the digest finds what a disk did to it later.
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
    """The snapshots in a folder, named by the updates done. One process writes them."""

    def __init__(self, folder: Path, kept: int = KEPT) -> None:
        self.folder, self.kept = folder, kept

    def save(self, update: int, state: dict[str, Any]) -> Path:
        """Write one and remove all but the last few. Raises: TrainingError if it cannot be written."""
        stream = io.BytesIO()
        torch.save(state, stream)
        content = stream.getvalue()
        path = self.folder / f"update-{update:08d}.snapshot"
        try:
            write_atomically(path, b"%s %s\n" % (FORMAT, hashlib.sha256(content).hexdigest().encode()) + content)
            found = self._paths()
            for old in [p for u, p in found if u > update] + [p for u, p in found if u <= update][: -self.kept]:
                old.unlink()  # later ones could not be read, else the run would have gone on from them
        except OSError as error:
            raise TrainingError(f"cannot write the snapshot {path}: {error.strerror}") from error
        return path

    def newest(self, announce: Callable[[str], None]) -> tuple[int, bytes] | None:
        """Updates done and content of the newest snapshot that is whole, None if there never was one.

        Says which ones are damaged. Raises: TrainingError if all are.
        """
        found = self._paths()
        for update, path in reversed(found):
            try:
                return update, read(path)
            except (OSError, ValueError) as error:
                announce(f"the snapshot {path} is not used: {error}")
        if found:
            raise TrainingError(f"no snapshot in {self.folder} can be read: remove the folder to begin the run anew")
        return None

    def _paths(self) -> list[tuple[int, Path]]:
        if not self.folder.is_dir():
            return []
        named = ((_NAME.fullmatch(path.name), path) for path in self.folder.iterdir())
        return sorted((int(match[1]), path) for match, path in named if match)


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep other runs out of the folder until this one ends, in whatever way.

    Raises: TrainingError if one is there, or if the folder cannot be made.
    """
    with contextlib.ExitStack() as held:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            fcntl.flock(held.enter_context((folder / "lock").open("w")), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise TrainingError(f"another run writes to {folder}: end it first, or give another --out") from error
        except OSError as error:
            raise TrainingError(f"cannot write to {folder}: {error.strerror}") from error
        yield


def read(path: Path) -> bytes:
    """Content of a snapshot, for `state_of`. Raises: OSError; ValueError if it is damaged."""
    head, _, content = path.read_bytes().partition(b"\n")
    kind, _, digest = head.partition(b" ")
    if kind != FORMAT:
        raise ValueError(f"it does not begin with {FORMAT.decode()}")
    if hashlib.sha256(content).hexdigest().encode() != digest:
        raise ValueError("its content is damaged or cut off")
    return content


def state_of(content: bytes) -> dict[str, Any]:
    """The state that was saved."""
    state: dict[str, Any] = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    return state
