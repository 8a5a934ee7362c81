"""What is made of a file, kept as one file of arrays, read into memory of the process's own.

It is not mapped: a file that is overwritten in place or cut while it is mapped ends the process (SIGBUS), or changes
numbers under a search. The checksum reads every byte at the start anyway.

Layout: magic, length of the header, header (JSON: order, digest of the source, place of each array), arrays aligned to
64 bytes. Written under a temporary name and renamed, so readers see a whole file or none.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from model.errors import LanguageModelError

Arrays = Mapping[str, NDArray[Any]]
Made = TypeVar("Made")

_MAGIC = b"tuttilm1"
_ALIGN = 64
SUFFIX = ".lm"


def kept(
    places: Sequence[Path],
    load: Callable[[Path], Made],
    make: Callable[[], Made],
    save: Callable[[Made, Path], None],
) -> Made:
    """Load what is kept at the first place that has it, else make it and keep it at the first that takes it.

    A place is passed over where `load` or `save` raises LanguageModelError or OSError: no such file yet, one of another
    version, a folder that cannot be written. Where all are, what was made is in memory alone. Raises: what `make` does.
    """
    for place in places:
        with contextlib.suppress(OSError, LanguageModelError):
            return load(place)
    made = make()
    for place in places:
        with contextlib.suppress(OSError, LanguageModelError):
            place.parent.mkdir(parents=True, exist_ok=True)
            save(made, place)
            return load(place)
    return made


def cache_dirs(path: Path) -> tuple[Path, ...]:
    """Where to keep what is made of a file: its own folder, then one in the user's home."""
    try:
        return path.parent, Path.home() / ".cache" / "tutti"
    except RuntimeError:  # a user without a home
        return (path.parent,)


def write_cache(path: Path, header: Mapping[str, Any], arrays: Arrays) -> None:
    """Write the file in one step. Raises: OSError when the folder cannot be written."""
    places, offset = {}, 0
    for name, array in arrays.items():
        places[name] = {"dtype": array.dtype.str, "shape": array.shape, "offset": offset}
        offset += _aligned(array.nbytes)
    full = {**header, "arrays": places, "bytes": offset, "crc32": _checksum(arrays)}
    text = json.dumps(full).encode()
    head = _MAGIC + len(text).to_bytes(8, "little") + text
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(head.ljust(_aligned(len(head)), b"\0"))
            for array in arrays.values():
                file.write(_bytes(array))
                file.write(b"\0" * (_aligned(array.nbytes) - array.nbytes))
        Path(name).chmod(0o644)  # readable for every user of the machine
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise


def read_cache(path: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Read the file and return its header and its arrays, read-only. Raises: LanguageModelError, OSError."""
    with path.open("rb") as file:
        head = file.read(len(_MAGIC) + 8)
        if head[: len(_MAGIC)] != _MAGIC:
            raise LanguageModelError(f"{path} is not a language model of this version")
        length = int.from_bytes(head[len(_MAGIC) :], "little")
        base, size = _aligned(len(head) + length), os.fstat(file.fileno()).st_size
        if base > size:
            raise LanguageModelError(f"{path} is damaged: it ends within its header")
        text = file.read(length)
        file.seek(base)
        content = np.fromfile(file, np.uint8)  # aligned to 16 bytes or more
    content.flags.writeable = False
    try:
        header = json.loads(text)
        arrays = {name: _view(content, place) for name, place in header["arrays"].items()}
        whole = len(content) == header["bytes"] and _checksum(arrays) == header["crc32"]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:  # any JSON at all
        raise LanguageModelError(f"{path} is damaged: {error}") from error
    if not whole:
        raise LanguageModelError(f"{path} is damaged: its size or its checksum is wrong")
    return header, arrays


def _view(content: NDArray[np.uint8], place: Mapping[str, Any]) -> NDArray[Any]:
    shape = tuple(place["shape"])
    count = int(np.prod(shape))
    dtype = np.dtype(place["dtype"])
    return np.frombuffer(content, dtype, count, place["offset"]).reshape(shape)


def _checksum(arrays: Arrays) -> int:
    checksum = 0
    for array in arrays.values():
        checksum = zlib.crc32(_bytes(array), checksum)
    return checksum


def _bytes(array: NDArray[Any]) -> Any:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN
