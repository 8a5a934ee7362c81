"""Shipped machine code: the shared library that fits this processor, its verification, and calls of its functions.

A wheel may carry a library for each kind of processor (`model.prebuilt.wheel`). It has no Python in it: functions
take numbers and the addresses of numpy's arrays, whose layout is part of numpy's binary interface, so it serves every
version of Python. Code is used if its sources are those of this installation, if its bytes have the digest that was
written with it, and if the processor has every instruction that the compiler was allowed to use.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import operator
import os
import platform
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import numpy as np

from model.errors import ModelError

SOURCES = (
    "attention/kernels",
    "attention/plan",
    "attention/step",
    "attention_config",
    "audio/levels",
    "audio/mel",
    "config",
    "ctc/kept_frames",
    "ctc/search/alignments",
    "ctc/search/bounds",
    "ctc/search/candidates",
    "ctc/search/frame_search",
    "ctc/search/kernel",
    "ctc/search/layout",
    "ctc/search/logs",
    "ctc/search/prefix_score",
    "ctc/search/prefix_tree",
    "ctc/search/recombination",
    "int8/features",
    "int8/kernels",
    "int8/product",
    "int8/product_table",
    "int8/quantized",
    "int8/step",
    "int8/vectors",
    "lm/arpa_rows",
    "lm/score",
    "lm/spelling",
    "machine/compiled",
    "machine/compiler",
    "machine/instructions",
    "machine/memory",
    "machine/native",
    "machine/pointers",
    "moonshine/kernels",
    "moonshine/step",
    "published/compiled/fastconformer/attention",
    "published/compiled/fastconformer/plan",
    "published/compiled/fastconformer/step",
    "published/compiled/float_product",
    "published/compiled/kernels",
    "published/compiled/linears",
    "published/compiled/packed",
    "published/compiled/team",
    "published/compiled/transducer/step",
    "published/compiled/zipformer2/attention",
    "published/compiled/zipformer2/embedding",
    "published/compiled/zipformer2/kernels",
    "published/compiled/zipformer2/plan",
    "published/compiled/zipformer2/step",
    "published/features",
    "published/filter_bank",
    "published/graphs/metadata",
    "published/scales",
    "published/states",
    "published/timing",
    "published/transducer/frame_joiner",
    "punctuation/step",
    "speakers/step",
    "vad/step",
)
"""Source files of the machine code, relative to `model/`, without .py; hashed for the cache key."""

FOLDER = Path(__file__).with_name("code")
MANIFEST = "code.json"
CPU_INFO = Path("/proc/cpuinfo")

InstructionSet = Literal["vnni512", "vnni256", "avx2", "portable"]
"""Instructions for 8-bit products; all give the same integers."""

_V3 = frozenset(
    "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3 avx avx2 bmi1 bmi2 f16c fma abm movbe xsave".split()  # noqa: SIM905
)
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of processors: the compiler's name and features, and the flags in Linux' list that they need."""

    processor: str
    features: str
    flags: frozenset[str]
    instructions: InstructionSet
    level: int  # 0: without AVX2, 1: with it, 2: with AVX-512

    @property
    def name(self) -> str:
        """Name of the library's file, without its suffix."""
        return f"{self.processor}{self.features}"


KINDS = (
    Kind("x86-64-v4", "+avx512vnni", _V4 | {"avx512_vnni"}, "vnni512", 2),
    Kind("x86-64-v3", "+avxvnni", _V3 | {"avx_vnni"}, "vnni256", 2),
    Kind("x86-64-v3", "", _V3, "avx2", 1),
    Kind("x86-64", "", frozenset(), "portable", 0),
)
"""The fastest first. Source of the levels: x86-64 psABI, micro-architecture levels."""

HELD_BACK = {"DEFAULT": 0, "SSE41": 0, "AVX": 0, "AVX2": 1}
"""Level by value of the variables in `allowed_level`, in upper case; any other value, such as AVX512, has no effect."""

MISMATCH = -1
"""Status of a call whose arrays are not those that the function was compiled for; other numbers: it raised."""
_HEAD = 16  # bytes of an object before numpy's fields; more in an interpreter without the lock

F = TypeVar("F", bound=Callable[..., Any])


@functools.cache
def source_digest() -> str:
    """Return the digest of all `SOURCES`."""
    digest = hashlib.sha256()
    for name in SOURCES:
        digest.update((Path(__file__).parents[1] / f"{name}.py").read_bytes())
    return digest.hexdigest()


def allowed_level(environment: Mapping[str, str]) -> int | None:
    """Return the level to which torch's or oneDNN's variable limits the instructions; None: no limit."""
    values = [environment.get(name, "").upper() for name in ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA")]
    return min((HELD_BACK[value] for value in values if value in HELD_BACK), default=None)


def kinds_here(environment: Mapping[str, str] = os.environ, cpu_info: Path = CPU_INFO) -> list[Kind]:
    """Return the kinds whose code runs on this machine, the fastest first; none on other systems than Linux on x86."""
    if sys.platform != "linux" or platform.machine() != "x86_64" or environment.get("NUMBA_CPU_NAME"):
        return []
    try:
        lines = cpu_info.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        lines = []
    flags = next((set(line.split(":")[1].split()) for line in lines if line.startswith("flags")), set())
    level = allowed_level(environment)
    return [kind for kind in KINDS if kind.flags <= flags and (level is None or kind.level <= level)]


def shipped(
    digest: str, folder: Path, environment: Mapping[str, str] = os.environ, cpu_info: Path = CPU_INFO
) -> Library | None:
    """Return the library for this processor, made from the sources with this digest; None if there is none.

    With NUMBA_CPU_NAME in the environment nothing shipped is used. Raises: ModelError if a library is damaged.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise _damaged(folder / MANIFEST) from error
    if manifest["sources"] != digest or not _arrays_are_as_compiled():
        return None
    for kind in kinds_here(environment, cpu_info):
        if kind.name in manifest["libraries"]:
            path = folder / f"{kind.name}.so"
            if not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != manifest["libraries"][kind.name]:
                raise _damaged(path)
            return Library(kind, path, manifest["functions"])
    return None


def _damaged(path: Path) -> ModelError:
    return ModelError(f"{path} is missing or damaged: install tutti-asr again")


def _arrays_are_as_compiled() -> bool:
    """Return whether an array has the layout that the code reads: data, axes, their lengths and steps, type, flags."""
    probe = np.zeros((2, 3), np.int16)
    if object.__basicsize__ != _HEAD:
        return False
    data, axes, lengths, _, _, kind, flags = struct.unpack_from("=QixxxxQQQQi", ctypes.string_at(id(probe), 72), _HEAD)
    (number,) = struct.unpack_from("=i", ctypes.string_at(kind, 32), _HEAD + 12)
    held = struct.unpack("=qq", ctypes.string_at(lengths, 16))
    return bool((data, axes, held, number) == (probe.ctypes.data, 2, (2, 3), probe.dtype.num) and flags & 1)


class Library:
    """The functions of one shared library, by the names of the Python functions that they were compiled from."""

    def __init__(self, kind: Kind, path: Path, functions: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        self.kind, self.folder = kind, path.parent
        self._functions = functions
        self._code = ctypes.CDLL(str(path))
        accept = self._code.tutti_accept
        accept.argtypes, accept.restype = [ctypes.c_int64] * 2, None
        accept(id(np.ndarray), id(np.memmap))  # types of the arrays

    def function(self, function: F) -> F:
        """Return the compiled form of a function; it takes the same arguments, by position alone."""
        name = f"{function.__module__}.{function.__qualname__}"
        variants = [
            _bind(name, getattr(self._code, form["symbol"]), form["arguments"], form["result"])
            for form in self._functions.get(name, ())
        ]

        def call(*arguments: Any) -> Any:
            for variant in variants:
                try:
                    return variant(*arguments)
                except _Mismatch:
                    continue
            raise _Mismatch(name)

        return cast(F, functools.wraps(function)(variants[0] if len(variants) == 1 else call))


class _Mismatch(TypeError):
    """The arguments are not those that the code was compiled for."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} has no shipped code for these arguments")


def _bind(name: str, code: Any, kinds: Sequence[Any], result: Any) -> Callable[..., Any]:
    """Return a call of a function by its Python arguments.

    A kind is `i` (an integer), `d` (a float), `a` (an array), or a list of kinds, of a tuple. A result is None, `i`,
    `d` or a list of `i`. Raises: _Mismatch.
    """
    types = {"i": ctypes.c_int64, "d": ctypes.c_double, "a": ctypes.py_object}
    taken = [ctypes.c_char_p if isinstance(kind, list) else types[kind] for kind in kinds]
    packers = [(at, _packer(kind)) for at, kind in enumerate(kinds) if isinstance(kind, list)]
    whole = [at for at, kind in enumerate(kinds) if kind == "i"]
    out_type: Any = (ctypes.c_double if result == "d" else ctypes.c_int64) * len(result or ())
    code.restype, code.argtypes = ctypes.c_int32, taken if result is None else [*taken, ctypes.POINTER(out_type)]

    def call(*arguments: Any) -> Any:
        values = list(arguments)
        if len(values) != len(kinds):
            raise _Mismatch(name)
        for at, pack in packers:
            values[at] = pack(values[at])
        out = out_type() if result is not None else None
        if out is not None:
            values.append(out)
        try:
            status = code(*values)
        except ctypes.ArgumentError:  # integers of numpy
            for at in whole:
                values[at] = operator.index(values[at])
            status = code(*values)
        if status:
            raise _Mismatch(name) if status == MISMATCH else RuntimeError(f"{name} failed in compiled code")
        return out if out is None else tuple(out) if isinstance(result, list) else out[0]

    return call


def _packer(kinds: Sequence[Any]) -> Callable[[Any], bytes]:
    """Return the conversion of a tuple to its numbers, 8 bytes each: of an array, the address of the object."""
    letters = list(_flat(kinds))
    layout = struct.Struct("=" + "".join("d" if letter == "d" else "q" for letter in letters))
    if "a" not in letters and len(letters) == len(kinds):
        return lambda value: layout.pack(*value)
    last: list[tuple[Any, bytes]] = [((), b"")]  # named tuples are made once and passed at each call

    def pack(value: Any) -> bytes:
        before, packed = last[0]
        if before is value:
            return packed
        packed = layout.pack(*_words(kinds, value))
        if type(value) is not tuple:
            last[0] = value, packed
        return packed

    return pack


def _flat(kinds: Sequence[Any]) -> Iterator[str]:
    for kind in kinds:
        if isinstance(kind, list):
            yield from _flat(kind)
        else:
            yield kind


def _words(kinds: Sequence[Any], values: Sequence[Any]) -> Iterator[Any]:
    for kind, value in zip(kinds, values, strict=True):
        if kind == "a":
            yield id(value)
        elif isinstance(kind, list):
            yield from _words(kind, value)
        else:
            yield value
