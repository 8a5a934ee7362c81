"""An ONNX file whose weights are mapped instead of read: a message without them, and arrays over the files.

Weights are in the file itself, or in files next to it ("external data"). Reading a file as one message would copy them
twice, and a message has at most 2 GiB. Source: the field numbers of onnx.proto.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.errors import PublishedModelError

GRAPH, INITIALIZER = 7, 5  # fields of a model and of a graph
SIZES, ELEMENT, NAME, RAW_DATA, EXTERNAL_DATA = 1, 2, 8, 9, 13  # fields of a tensor
FLOAT32 = b"\1"  # content of ELEMENT
LEAST_BYTES = 1024  # of weights that are mapped; smaller ones stay in the message
SIZED, NUMBER, FIXED = 2, 0, {1: 8, 5: 4}  # types of a field: length and content, a varint, bytes of the others


@dataclass(frozen=True, slots=True)
class OnnxFile:
    """The message (`onnx.ModelProto`), and the weights that are not in it, by name."""

    model: Any
    weights: Mapping[str, NDArray[Any]]

    @classmethod
    def read(cls, path: Path) -> OnnxFile:
        """Read a file. Raises: PublishedModelError, OSError."""
        import onnx

        try:
            content, spans = _split(_mapped(path))
            model = onnx.load_model_from_string(content)
        except Exception as error:
            raise PublishedModelError(f"{path.name} is not an ONNX file: {error}") from error
        maps: dict[Path, Any] = {path: _mapped(path)}
        weights = {
            tensor.name: _array(path, tensor, span, maps)
            for tensor, span in zip(model.graph.initializer, spans, strict=True)
            if span is not None or tensor.data_location == onnx.TensorProto.EXTERNAL
        }
        return cls(model, weights)


def float_tensors(content: bytes) -> dict[str, NDArray[np.float32]]:
    """Return the float32 weights in a message by name, stored as raw bytes. Raises: LookupError, ValueError.

    It needs no package, so that the shipped voice-activity model does not.
    """
    tensors: dict[str, NDArray[np.float32]] = {}
    for graph, _, first, last in _fields(content, 0, len(content)):
        for part, _, begin, end in _fields(content, first, last) if graph == GRAPH else ():
            if part == INITIALIZER:
                fields = [(number, at, until) for number, _, at, until in _fields(content, begin, end)]
                sizes = [_varint(content, at)[0] for number, at, _ in fields if number == SIZES]
                spans = {number: content[at:until] for number, at, until in fields}
                if spans[ELEMENT] == FLOAT32:
                    tensors[spans[NAME].decode()] = np.frombuffer(spans[RAW_DATA], np.float32).reshape(sizes)
    if not tensors:
        raise ValueError("it has no weights")
    return tensors


def external_files(path: Path) -> tuple[Path, ...]:
    """Return the files next to a graph that hold its weights. Raises: PublishedModelError if one does not exist."""
    import onnx

    try:
        model = onnx.load_model_from_string(_split(_mapped(path))[0])
    except Exception:  # noqa: BLE001  the loader of the graph reports it
        return ()
    tensors = [weights for weights in model.graph.initializer if weights.data_location == onnx.TensorProto.EXTERNAL]
    return tuple(dict.fromkeys(_place(path, tensor)[0] for tensor in tensors))


def _mapped(path: Path) -> Any:
    """Return the bytes of a file, without reading them."""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if path.stat().st_size else b""


def _fields(content: Any, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the fields of a message: number, start, start of the content, end. Raises: IndexError if it is cut off."""
    while at < end:
        first = at
        tag, at = _varint(content, at)
        kind = tag & 7
        if kind == SIZED:
            size, at = _varint(content, at)
            yield tag >> 3, first, at, at + size
            at += size
        else:
            start = at
            at = _varint(content, at)[1] if kind == NUMBER else at + FIXED.get(kind, end)
            yield tag >> 3, first, start, at


def _varint(content: Any, at: int) -> tuple[int, int]:
    """Return a number of seven bits a byte, and where it ends."""
    value, shift = 0, 0
    while content[at] & 0x80:
        value, shift, at = value | (content[at] & 0x7F) << shift, shift + 7, at + 1
    return value | content[at] << shift, at + 1


def _sized(number: int, content: bytes) -> bytes:
    """Return a field with a length and content."""
    return _encoded(number << 3 | SIZED) + _encoded(len(content)) + content


def _encoded(value: int) -> bytes:
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def _split(content: Any) -> tuple[bytes, list[tuple[int, int] | None]]:
    """Return the message without large weights; for each tensor where those are, or None. Raises: IndexError."""
    parts: list[bytes] = []
    spans: list[tuple[int, int] | None] = []
    for number, first, start, end in _fields(content, 0, len(content)):
        if number != GRAPH:
            parts.append(content[first:end])
            continue
        graph: list[bytes] = []
        for inner, inner_first, inner_start, inner_end in _fields(content, start, end):
            if inner == INITIALIZER:
                tensor, span = _without_weights(content, inner_start, inner_end)
                spans.append(span)
                graph.append(_sized(INITIALIZER, tensor))
            else:
                graph.append(content[inner_first:inner_end])
        parts.append(_sized(GRAPH, b"".join(graph)))
    return b"".join(parts), spans


def _without_weights(content: Any, at: int, end: int) -> tuple[bytes, tuple[int, int] | None]:
    parts, span = [], None
    for number, first, start, last in _fields(content, at, end):
        if number == RAW_DATA and last - start >= LEAST_BYTES:
            span = start, last - start
        else:
            parts.append(content[first:last])
    return b"".join(parts), span


def _place(path: Path, tensor: Any) -> tuple[Path, int, int | None]:
    """Return file, offset and length of external data. Raises: PublishedModelError."""
    stated = {entry.key: entry.value for entry in tensor.external_data}
    location = Path(stated.get("location", ""))
    if not location.name or location.is_absolute() or ".." in location.parts:
        raise PublishedModelError(f"{path.name}: weights at {str(location)!r}, which is not in the folder of the graph")
    file = path.parent / location
    if not file.is_file():
        raise PublishedModelError(f"{path.name} needs the file {location} next to it, which has its weights")
    length = stated.get("length")
    return file, int(stated.get("offset", 0)), None if length is None else int(length)


def _array(path: Path, tensor: Any, span: tuple[int, int] | None, maps: dict[Path, Any]) -> NDArray[Any]:
    """Return the weights of a tensor; a copy if their place in the file does not suit their type."""
    from onnx import helper

    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    size = math.prod(tensor.dims) * dtype.itemsize
    file, start, length = (path, *span) if span is not None else _place(path, tensor)
    if file not in maps:
        maps[file] = _mapped(file)
    if length not in {None, size} or start + size > len(maps[file]):
        raise PublishedModelError(
            f"{file.name} does not have the {size} bytes of the weights {tensor.name!r} of {path.name}"
        )
    array = np.frombuffer(maps[file], dtype, math.prod(tensor.dims), start).reshape(tensor.dims)
    return array if array.flags.aligned else array.copy()
