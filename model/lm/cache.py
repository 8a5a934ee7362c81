"""Cache files: arrays derived from a source file, read into the process's own memory.

The file is not memory-mapped: overwriting or truncating a mapped file kills the process (SIGBUS) or changes numbers
during a search. The checksum reads every byte at load time anyway.

Layout: magic, length of the header, header (JSON: order, digest of the source, offset of each array), arrays aligned to
64 bytes. Written under a temporary name and renamed, so readers see a complete file or none.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
from numpy.typing import NDArray

from model.errors import LanguageModelError

Arrays = Mapping[str, NDArray[Any]]
Made = TypeVar("Made")

_MAGIC = b"tuttilm1"
_ALIGN = 64
SUFFIX = ".lm"


def kept(
    places: Sequence[Path], load: Callable[[Path], Made], make: Callable[[], Made], save: Callable[[Made, Path], None]
) -> Made:
    """Load from the first valid cache file; otherwise make the object and save it at the first writable place.

    A place is skipped if `load` or `save` raises LanguageModelError or OSError: no such file, one of another version, a
    folder that cannot be written. If no place is writable, the result stays in memory. Raises: what `make` raises.
    """
    for path in places:
        with contextlib.suppress(OSError, LanguageModelError):
            return load(path)
    made = make()
    for path in places:
        with contextlib.suppress(OSError, LanguageModelError):
            path.parent.mkdir(parents=True, exist_ok=True)
            save(made, path)
            return load(path)
    return made


def cache_dirs(path: Path) -> tuple[Path, ...]:
    """Folders for the cache of a file: the file's own folder, then one in the user's home."""
    try:
        return path.parent, Path.home() / ".cache" / "tutti"
    except RuntimeError:  # the user has no home
        return (path.parent,)


def write_cache(path: Path, header: Mapping[str, Any], arrays: Arrays) -> None:
    """Write a cache file atomically. Raises: OSError when the folder cannot be written."""
    places, offset = {}, 0
    for name, array in arrays.items():
        places[name] = {"dtype": array.dtype.str, "shape": array.shape, "offset": offset}
        offset += _aligned(array.nbytes)
    full = {**header, "arrays": places, "bytes": offset, "crc32": _checksum(arrays)}
    text = json.dumps(full).encode()
    head = _MAGIC + len(text).to_bytes(8, "little") + text
    with replacing(path) as file:
        file.write(head.ljust(_aligned(len(head)), b"\0"))
        for array in arrays.values():
            file.write(_bytes(array))
            file.write(b"\0" * (_aligned(array.nbytes) - array.nbytes))


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a new file that takes the name `path` at the end; an error leaves nothing. Raises: OSError."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
        Path(name).chmod(0o644)  # readable for every user of the machine
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read_cache(path: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Read a cache file; return its header and its arrays, read-only. Raises: LanguageModelError, OSError."""
    with path.open("rb") as file:
        head = file.read(len(_MAGIC) + 8)
        if head[: len(_MAGIC)] != _MAGIC:
            raise LanguageModelError(f"{path} is not a cached language model of this version")
        length = int.from_bytes(head[len(_MAGIC) :], "little")
        base, size = _aligned(len(head) + length), os.fstat(file.fileno()).st_size
        if base > size:
            raise LanguageModelError(f"{path} is damaged: the header is incomplete")
        text = file.read(length)
        file.seek(base)
        content = np.fromfile(file, np.uint8)  # aligned to 16 bytes or more
    content.flags.writeable = False
    try:
        header = json.loads(text)
        arrays = {name: _view(content, entry) for name, entry in header["arrays"].items()}
        whole = len(content) == header["bytes"] and _checksum(arrays) == header["crc32"]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:  # the header may be any JSON
        raise LanguageModelError(f"{path} is damaged: {error}") from error
    if not whole:
        raise LanguageModelError(f"{path} is damaged: wrong size or checksum")
    return header, arrays


def _view(content: NDArray[np.uint8], entry: Mapping[str, Any]) -> NDArray[Any]:
    shape = tuple(entry["shape"])
    count = int(np.prod(shape))
    dtype = np.dtype(entry["dtype"])
    return np.frombuffer(content, dtype, count, entry["offset"]).reshape(shape)


def _checksum(arrays: Arrays) -> int:
    checksum = 0
    for array in arrays.values():
        checksum = zlib.crc32(_bytes(array), checksum)
    return checksum


def _bytes(array: NDArray[Any]) -> Any:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN
