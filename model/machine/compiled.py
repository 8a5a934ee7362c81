"""Compilation of inner loops by numba: decorators, the cache of machine code on disk, access to memory by address.

Every stream owns one block of memory. A batch passes the addresses of its streams to one compiled call, so streams
can be created and dropped on one thread while others are decoded on another, and no block is moved.

Each combination of argument types costs a compilation; 32 and 64 bits are different types, and a literal 0 is its
own type: so functions take numbers widened to 64 bits by `int`, and counters start at `ZERO`.

Where an installation has machine code for this processor (`model.machine.native`), entry points call it, and nothing
is compiled.
"""

from __future__ import annotations

import contextlib
import glob
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from model.machine.compiler import LIBRARY, caching, numba
from model.machine.instructions import limit_instructions
from model.machine.native import source_digest

limit_instructions()  # before the first function is compiled

IntArray = NDArray[np.int32]
LongArray = NDArray[np.int64]
FloatArray = NDArray[np.float32]
DoubleArray = NDArray[np.float64]

ZERO = cast(int, np.int64(0))

F = TypeVar("F", bound=Callable[..., Any])

ENTRY_POINTS: list[Any] = []
"""numba's dispatchers of all entry points in the modules imported so far, whose code is cached."""


def compiled(function: F) -> F:
    """Compile for calls from compiled code only, at the first call; this saves the wrappers.

    Arrays are borrowed from the entry point, which owns them. Without numba's reference counting at each view and call
    decoding takes a third of the time; such a function can neither create an array nor return one.
    """
    return cast(F, numba.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, _nrt=False)(function))


def compiled_variant(name: str) -> Callable[[F], F]:
    """Compile one of several functions that an outer function makes; `name` distinguishes it from the others.

    numba names machine code by qualified name and a counter of the process. Cached code of several processes is linked
    in one, so two variants with one name could be exchanged.
    """

    def make(function: F) -> F:
        function.__qualname__ = f"{function.__qualname__}.{name}"
        return compiled(function)

    return make


def compiled_inline(function: F) -> F:
    """Compile inline into its callers, because a call would pass about a hundred words for the arrays of a search."""
    return cast(F, numba.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, _nrt=False, forceinline=True)(function))


def entry_point(function: F) -> F:
    """Compile at the first call from Python, with all callees, and cache the code on disk if possible.

    numba's cache checks only the file of the function, not those of its callees: here the digest of all
    `SOURCES` is part of the cache file's name. If no folder is writable, each process compiles again.
    """
    if LIBRARY is not None:
        return LIBRARY.function(function)
    try:
        dispatcher = numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # no writable folder
        return cast(F, numba.njit(nogil=True)(function))
    _name_by_digest(dispatcher._cache, source_digest())
    ENTRY_POINTS.append(dispatcher)
    return cast(F, dispatcher)


def kept_in(function: Callable[..., Any]) -> Path | None:
    """Return the folder with the machine code of an entry point, shipped or cached; None if it is not cached."""
    if LIBRARY is not None:
        return LIBRARY.folder
    path = cast(Any, function).stats.cache_path
    return Path(path) if path else None


def is_cached(function: Callable[..., Any]) -> bool:
    """Return whether machine code of an entry point for this processor is on disk; if not, its first call compiles."""
    if LIBRARY is not None:
        return True
    cache = getattr(function, "_cache", None)
    files = getattr(cache, "_cache_file", None)
    if files is None:
        return False
    processor = numba.core.registry.cpu_target.target_context.codegen().magic_tuple()
    return any(key[1] == processor for key in files._load_index())


def _name_by_digest(kept: Any, digest: str) -> None:
    """Add the digest to the names of one function's cache files, and remove files with other digests."""
    base = kept._impl.filename_base
    files = caching.IndexDataCacheFile(kept.cache_path, f"{base}-{digest[:16]}", digest)
    files.load, files.save = _or_none(files.load), _or_none(files.save)
    kept._cache_file = files
    for path in Path(kept.cache_path).glob(f"{glob.escape(base)}-*.nb[ic]"):
        if not path.name.startswith(f"{base}-{digest[:16]}"):
            with contextlib.suppress(OSError):  # removed by another process, or a read-only folder
                path.unlink()


def _or_none(method: Callable[..., Any]) -> Callable[..., Any]:
    """Turn OSError (full disk, missing permission) into None: it costs a compilation but no stream."""

    def call(*arguments: Any) -> Any:
        with contextlib.suppress(OSError):
            return method(*arguments)
        return None

    return call


def _reader(element: Any) -> Callable[[int], Any]:
    """Return a compiled conversion of an address to a pointer to `element`."""

    def pointer_at(_typing: Any, _address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return numba.types.CPointer(element)(numba.types.int64), generate

    return cast(Callable[[int], Any], numba.extending.intrinsic(pointer_at))


uint8_at = _reader(numba.types.uint8)
uint16_at = _reader(numba.types.uint16)
int32_at = _reader(numba.types.int32)
int64_at = _reader(numba.types.int64)
float32_at = _reader(numba.types.float32)
