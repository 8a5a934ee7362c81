"""Unpacking of a downloaded archive (.tar.bz2, .tar.gz, .zip) into a folder, without trust in its contents.

Refused are paths outside the folder, links out of it, devices, and more than a limit of bytes, files or nested folders.
An archive is read to its end, so that its check sum is verified and a damaged member is noticed.
"""

from __future__ import annotations

import bz2
import gzip
import re
import shutil
import stat
import tarfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from server.errors import ServerError

ENDINGS = (".tar.bz2", ".tar.gz", ".tgz", ".zip")
MAX_BYTES = 16 * 1024**3  # four times the limit of a download: weights hardly compress
MAX_FILES = 10_000  # releases of models have about ten
MAX_DEPTH = 32  # folders in folders; releases have one or two
BLOCK_BYTES = 1 << 20


class ArchiveError(ServerError):
    """The archive is damaged, not an archive, or refused; the message names it."""


def stem(name: str) -> str | None:
    """Return a file name without the ending of an archive, None if it has none."""
    ending = next((known for known in ENDINGS if name.lower().endswith(known)), None)
    return None if ending is None else name[: -len(ending)]


def unpack(archive: Path, folder: Path, name: str, *, max_bytes: int = MAX_BYTES) -> Path:
    """Unpack into a new folder. Returns the folder with the files: this one, or the only folder in it.

    `name`: the archive's name, for messages and for its ending. Raises: ArchiveError. What has been unpacked by then
    stays, for the caller to remove.
    """
    try:
        folder.mkdir()
        if name.lower().endswith(".zip"):
            _unzip(archive, folder, max_bytes)
        else:
            _untar(archive, folder, name, max_bytes)
        return _checked_links(folder)
    except (tarfile.FilterError, _Refused) as error:
        raise ArchiveError(f"{name}: refused: {error}") from error
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise ArchiveError(f"{name}: is not an archive, or is damaged ({error})") from error
    except OSError as error:
        if error.errno is None:  # bz2's "Invalid data stream"
            raise ArchiveError(f"{name}: is not an archive, or is damaged ({error})") from error
        raise ArchiveError(f"{error.filename or folder}: {error.strerror}") from error


def _checked_links(folder: Path) -> Path:
    """Return the folder with the files: this one, or the only one in it. No link may leave it. Raises: _Refused."""
    inside = list(folder.iterdir())
    top = inside[0] if len(inside) == 1 and inside[0].is_dir() and not inside[0].is_symlink() else folder
    for path in top.rglob("*"):
        try:
            leaves = path.is_symlink() and not path.resolve().is_relative_to(top.resolve())
        except RuntimeError:  # a link to itself
            leaves = True
        if leaves:
            raise _Refused(f"the link {str(path.relative_to(top))!r} leads out of the folder")
    return top


class _Refused(Exception):
    """What is wrong with the contents."""


class _Limits:
    """Counts files and bytes before they are written."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = self._files = 0

    def add(self, size: int) -> None:
        """Raises: _Refused, if the archive is larger than allowed."""
        self._bytes, self._files = self._bytes + size, self._files + 1
        if self._bytes > self._max_bytes or self._files > MAX_FILES:
            raise _Refused(f"it unpacks to more than {self._max_bytes} bytes or {MAX_FILES} files")


def _untar(archive: Path, folder: Path, name: str, max_bytes: int) -> None:
    if not hasattr(tarfile, "data_filter"):
        raise _Refused("safe unpacking needs Python 3.11.4 or newer")
    limits = _Limits(max_bytes)
    open_file = bz2.open if name.lower().endswith(".bz2") else gzip.open
    with open_file(archive) as content, tarfile.open(fileobj=content, mode="r:") as tar:
        for member in tar:
            _check_path(member.name)
            limits.add(member.size)
            tar.extract(member, folder, filter="data")
        _check_end(content, tar.offset)


def _check_end(content: bz2.BZ2File | gzip.GzipFile, offset: int) -> None:
    """Check that only zeros follow the last member, as `tarfile` stops at a damaged one. Raises: tarfile.ReadError."""
    content.seek(offset)
    zeros = 0
    for block in iter(lambda: content.read(BLOCK_BYTES), b""):
        if block.strip(b"\0"):
            raise tarfile.ReadError("a member after the first cannot be read")
        zeros += len(block)
    if zeros < tarfile.BLOCKSIZE:
        raise tarfile.ReadError("the end of the archive is missing")


def _unzip(archive: Path, folder: Path, max_bytes: int) -> None:
    limits = _Limits(max_bytes)
    with zipfile.ZipFile(archive) as packed:
        for member in packed.infolist():
            _check_path(member.filename)
            if stat.S_ISLNK(member.external_attr >> 16):
                raise _Refused(f"{member.filename!r} is a link")
            limits.add(member.file_size)
            if member.flag_bits & 1:
                raise _Refused(f"{member.filename!r} is encrypted")
            packed.extract(member, folder)


def _check_path(path: str) -> None:
    """Refuse paths that lead out of the folder; `tarfile` would make absolute ones relative. Raises: _Refused."""
    if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts or re.match(r"[A-Za-z]:|\\", path):
        raise _Refused(f"{path[:256]!r} is outside the folder")
    if len(PurePosixPath(path).parts) > MAX_DEPTH:
        raise _Refused(f"{path[:64]!r}… has more than {MAX_DEPTH} folders in each other")


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
