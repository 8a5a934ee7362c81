"""A file of packed linear layers, mapped by every process that loads the model: its pages are in memory once.

Layout: arrays aligned to 64 bytes, an index (JSON: arrays and scale of each layer), and its length in 8 bytes. The file
is written layer by layer under a temporary name and renamed, and never changed, so what is mapped stays as it is.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from model.lm.cache import replacing
from model.machine.memory import ALIGNED
from model.published.scales import Scale

Parts = Mapping[str, NDArray[Any]]
SUFFIX = ".packed"
LENGTH = 8  # bytes of the length of the index


class PackedLayers:
    """The layers of a file, by name."""

    def __init__(self, path: Path) -> None:
        """Map a file. Raises: OSError or ValueError if it is not a complete one."""
        self._bytes = np.memmap(path, np.uint8, "r")
        length = int.from_bytes(self._bytes[-LENGTH:].tobytes(), "little")
        self._layers: Mapping[str, Any] = json.loads(self._bytes[-LENGTH - length : -LENGTH].tobytes())

    def scale(self, name: str) -> Scale | None:
        """Return the scale that a layer is packed with, None for one in floats."""
        scale = self._layers[name]["scale"]
        return None if scale is None else Scale(float(scale[0]), int(scale[1]))

    def parts(self, name: str) -> Parts:
        """Return the arrays of a layer where they lie in the file."""
        return {part: self._array(*span) for part, span in self._layers[name]["parts"].items()}

    def _array(self, start: int, dtype: str, shape: Sequence[int]) -> NDArray[Any]:
        kind = np.dtype(dtype)
        size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        return self._bytes[start : start + size].view(kind).reshape(tuple(shape))


def packed_at(
    paths: Sequence[Path], layers: Iterable[tuple[str, Scale | None, Callable[[], Parts]]]
) -> PackedLayers | None:
    """Map the file at the first path that has it, or write it at the first that can be written; None if none can.

    `layers`: name and scale of each layer, and a function that packs it. Other files of the same graph are removed.
    """
    for path in paths:
        with contextlib.suppress(OSError, ValueError, KeyError):
            return PackedLayers(path)
    for path in paths:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(path, layers)
            stem = path.name.rpartition("-")[0]
            for other in path.parent.glob(f"{stem}-*{SUFFIX}"):
                if other != path:
                    other.unlink()
            return PackedLayers(path)
    return None


def _write(path: Path, layers: Iterable[tuple[str, Scale | None, Callable[[], Parts]]]) -> None:
    """Write a file, layer by layer. Raises: OSError."""
    with replacing(path) as file:
        entries = {
            title: {
                "scale": None if scale is None else [scale.step, scale.zero],
                "parts": {part: _append(file, array) for part, array in pack().items()},
            }
            for title, scale, pack in layers
        }
        index = json.dumps(entries).encode()
        file.write(index + len(index).to_bytes(LENGTH, "little"))


def _append(file: BinaryIO, array: NDArray[Any]) -> list[Any]:
    file.write(bytes(-file.tell() % ALIGNED))
    start = file.tell()
    np.ascontiguousarray(array).tofile(file)
    return [start, array.dtype.str, list(array.shape)]
