"""The encoder-decoder network with its weights: segments of samples in, symbols out. Callable on any thread."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load

from model.checkpoint import digest_of, take_product
from model.config import SHIPPED_WEIGHTS
from model.errors import CheckpointError
from model.int8.product import COLUMNS, PANEL_SUMS, packed_shorts
from model.int8.product_table import PRODUCT_COLUMNS, product_row
from model.int8.quantized import QuantizedProduct
from model.int8.vectors import ROW
from model.machine.memory import KeptArrays, aligned, offsets_of
from model.moonshine import step
from model.moonshine.kernels import MASKED, ZERO_POINT
from model.moonshine.step import BLOCK, FIRST_STRIDE, FIRST_TAPS, HEAD, Plan, Sizes, Work

SHIPPED = SHIPPED_WEIGHTS / "moonshine-tiny-en.safetensors"
SAMPLE_RATE = 16_000
SIZES = Sizes(width=288, heads=8, deep=36, inner=1152, encoders=6, decoders=6, symbols=32_768, channels=576)
LONGEST_S = 30.0  # of a segment
LEAST_SAMPLES = FIRST_TAPS + FIRST_STRIDE * (step.SECOND_TAPS - 1 + step.SECOND_STRIDE * (step.THIRD_TAPS - 1))
SYMBOLS_PER_S = 6.5  # most of a text. Source: the network's authors, against texts that repeat themselves
ROTATED = 32  # numbers of a head that a position turns
ROTATION_BASE = 10_000.0
SPACE = "▁"
_SPECIAL, _BYTE = b"<", b"<0x"  # beginnings of symbols
_LONG = 128  # least size of a symbol that is written in two bytes

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Reading:
    """Symbols of a segment, and the mean of their log-probabilities, that of the end included if it was reached."""

    symbols: tuple[int, ...]
    log_prob: float
    ended: bool


class Moonshine:
    """A loaded network."""

    def __init__(self, tensors: dict[str, NDArray[Any]], digest: str) -> None:
        """`tensors` by the names of `tutti_asr_lab.training.moonshine.convert`. Raises: KeyError, ValueError."""
        self.digest = digest
        self._symbols = read_symbols(tensors["text"].tobytes())
        self._kept = KeptArrays()
        self._plan = _plan(tensors, self._kept.keep)

    @classmethod
    def load(cls, path: Path = SHIPPED) -> Moonshine:
        """Read the weights. Raises: CheckpointError."""
        try:
            blob = path.read_bytes()
            return cls(load(blob), digest_of(blob))
        except Exception as error:  # safetensors raises an untyped error of its own
            raise CheckpointError(f"finals: cannot read {path}: {error}; reinstall tutti") from error

    def read(self, pcm: NDArray[np.int16]) -> Reading:
        """Return the symbols of samples (S,) at `SAMPLE_RATE`, at most `LONGEST_S`; shorter ones are padded."""
        samples = np.zeros(max(len(pcm), LEAST_SAMPLES), np.float32)
        samples[: len(pcm)] = pcm.astype(np.float32) / np.float32(32_768)
        frames = (len(samples) - FIRST_TAPS) // FIRST_STRIDE + 1
        most = math.ceil(len(samples) / SAMPLE_RATE * SYMBOLS_PER_S)
        memory, work = _work(self._plan.sizes, frames, most)
        text = np.zeros(most, np.int32)
        count, log_prob = step.read(self._plan, work, samples.ctypes.data, frames, most, text)
        del memory
        ended = count < most
        return Reading(tuple(text[:count].tolist()), log_prob / (count + ended), ended)

    def text_of(self, reading: Reading) -> str:
        """Return the text of a reading as the network writes it, with capitals and marks."""
        return text_of(reading.symbols, self._symbols)


def _plan(tensors: dict[str, NDArray[Any]], keep: Any) -> Plan:
    """Copy the tables of a network to addresses that stay."""
    sizes = SIZES
    wide = sizes.heads * HEAD
    rows = [_shorts_row(tensors, name, keep) for name in ("encoder.second", "encoder.third")]

    def add(product: QuantizedProduct, gain: str = "") -> None:
        rows.append([*product_row(product, keep), keep(tensors[gain]) if gain else 0, 0])

    def linear(name: str, outputs: int, inputs: int) -> QuantizedProduct:
        return take_product(tensors, name, (outputs, inputs))

    def joined(names: Sequence[str], turned: int) -> QuantizedProduct:
        parts = [
            _in_heads(linear(name, sizes.width, sizes.width), sizes, turned=n < turned) for n, name in enumerate(names)
        ]
        return _stacked(parts)

    def closing(name: str) -> QuantizedProduct:
        return _from_heads(linear(name, sizes.width, sizes.width), sizes)

    for block in range(sizes.encoders):
        at = f"encoder.{block}."
        add(joined([f"{at}{part}" for part in ("query", "key", "value")], 2), f"{at}attention_norm")
        add(closing(f"{at}attended"))
        add(linear(f"{at}inner", sizes.inner, sizes.width), f"{at}feed_norm")
        add(linear(f"{at}outer", sizes.width, sizes.inner))
    for block in range(sizes.decoders):
        at = f"decoder.{block}."
        add(joined([f"{at}{part}" for part in ("query", "key", "value")], 2), f"{at}attention_norm")
        add(closing(f"{at}attended"))
        add(joined([f"{at}cross_{part}" for part in ("key", "value")], 0))
        add(joined([f"{at}cross_query"], 0), f"{at}cross_norm")
        add(closing(f"{at}crossed"))
        add(linear(f"{at}inner", 2 * sizes.inner, sizes.width), f"{at}feed_norm")
        add(linear(f"{at}outer", sizes.width, sizes.inner))
    add(linear("symbols", sizes.symbols, sizes.width), "decoder.norm")
    every = np.arange(BLOCK, dtype=np.int64)
    width, channels = sizes.width, sizes.channels
    return Plan(
        sizes=sizes,
        products=keep(np.array(rows, np.int64).reshape(-1, PRODUCT_COLUMNS)),
        filters=keep(np.ascontiguousarray(tensors["encoder.first"].T)),
        group_gain=keep(tensors["encoder.group_gain"]),
        group_bias=keep(tensors["encoder.group_bias"]),
        encoder_gain=keep(tensors["encoder.norm"]),
        rotations=keep(_rotations(step.columns_of(LONGEST_FRAMES))),
        factor=keep(np.array([sizes.deep**-0.5], np.float32)),
        numbers=keep(np.array([0.0, MASKED], np.float32)),
        row_offsets=keep(every * width),
        head_offsets=keep(every * wide),
        inner_offsets=keep(every * sizes.inner),
        second_offsets=keep(every * step.SECOND_STRIDE * width * 2),
        third_offsets=keep(every * step.THIRD_STRIDE * channels * 2),
    )


def frames_of(frames: int) -> tuple[int, int]:
    """Return the frames of the second and third convolution from those of the first."""
    second = (frames - step.SECOND_TAPS) // step.SECOND_STRIDE + 1
    return second, (second - step.THIRD_TAPS) // step.THIRD_STRIDE + 1


LONGEST_FRAMES = frames_of((int(LONGEST_S * SAMPLE_RATE) - FIRST_TAPS) // FIRST_STRIDE + 1)[1]


def _rotations(positions: int) -> Floats:
    """Return cosines and sines of the pairs' angles, (positions, 2, 16)."""
    rates = ROTATION_BASE ** (-2.0 * np.arange(ROTATED // 2) / ROTATED)
    angles = np.arange(positions)[:, None] * rates
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def _in_heads(product: QuantizedProduct, sizes: Sizes, *, turned: bool) -> QuantizedProduct:
    """Return a product whose outputs are rows of heads; with `turned`, left halves of pairs come before right ones."""
    order = np.arange(sizes.deep)
    if turned:
        order = np.concatenate([order[0:ROTATED:2], order[1:ROTATED:2], order[ROTATED:]])

    def padded(values: NDArray[Any]) -> NDArray[Any]:
        by_head = values.reshape(sizes.heads, sizes.deep, *values.shape[1:])[:, order]
        out = np.zeros((sizes.heads, HEAD, *values.shape[1:]), values.dtype)
        out[:, : sizes.deep] = by_head
        return out.reshape(-1, *values.shape[1:])

    return QuantizedProduct(padded(product.weight), padded(product.scale), padded(product.bias), 1.0, ZERO_POINT)


def _from_heads(product: QuantizedProduct, sizes: Sizes) -> QuantizedProduct:
    """Return a product whose inputs are rows of heads."""
    weight = np.zeros((len(product.weight), sizes.heads, HEAD), np.int8)
    weight[:, :, : sizes.deep] = product.weight.reshape(-1, sizes.heads, sizes.deep)
    return QuantizedProduct(weight.reshape(len(weight), -1), product.scale, product.bias, 1.0, ZERO_POINT)


def _stacked(parts: Sequence[QuantizedProduct]) -> QuantizedProduct:
    weight, scale, bias = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("weight", "scale", "bias")
    )
    return QuantizedProduct(weight, scale, bias, 1.0, ZERO_POINT)


def _shorts_row(tensors: dict[str, NDArray[Any]], name: str, keep: Any) -> list[int]:
    """Return the table's row of a convolution with inputs of 16 bits: weights (out, taps * in) int8."""
    weight = tensors[f"{name}.weight"]
    panels = packed_shorts(weight)
    return [
        keep(panels),
        panels.shape[1],
        panels.shape[0],
        keep(np.zeros(panels.shape[0] * COLUMNS, np.int32)),
        keep(tensors[f"{name}.weight_scale"]),
        keep(tensors[f"{name}.bias"]),
        0,
        0,
        0,
    ]


def _work(sizes: Sizes, frames: int, most: int) -> tuple[NDArray[np.uint8], Work]:
    """Return memory for a segment of this many frames of the first convolution, and its parts."""
    second, last = frames_of(frames)
    columns, texts = step.columns_of(last), step.columns_of(most)
    wide, matrix = sizes.heads * HEAD, sizes.heads * sizes.deep
    widest = max(3 * wide, 2 * sizes.inner, sizes.symbols // BLOCK)
    sizes_of = {
        "first": frames * sizes.width * 4,
        "shorts": frames * sizes.width * 2,
        "second": second * sizes.channels * 4,
        "second_shorts": second * sizes.channels * 2,
        "x": last * sizes.width * 4,
        "queries": last * wide * 4,
        "keys": matrix * columns * 4,
        "values": last * wide * 4,
        "mixed": last * wide * 4,
        "cross_keys": sizes.decoders * matrix * columns * 4,
        "cross_values": sizes.decoders * last * wide * 4,
        "own_keys": sizes.decoders * matrix * texts * 4,
        "own_values": sizes.decoders * texts * wide * 4,
        "mask": columns * 4,
        "own_mask": texts * 4,
        "row": max(columns, texts, sizes.width) * 4,
        "bytes": BLOCK * sizes.inner,
        "sums": BLOCK * (-(-widest // COLUMNS)) * PANEL_SUMS,
        "scales": BLOCK * ROW,
        "outputs": BLOCK * widest * 4,
        "moments": 6 * ROW,
    }
    offsets, size = offsets_of(sizes_of)
    memory = aligned(size)
    start = memory.ctypes.data
    places = {name: start + offset for name, offset in offsets.items()}
    return memory, Work(**places, columns=columns, texts=texts)


def read_symbols(blob: bytes) -> list[bytes]:
    """Return the symbols of a file: each its length in a byte, or two if it is 128 and more, then its bytes."""
    symbols, at = [], 0
    while at < len(blob):
        size, at = blob[at], at + 1
        if size >= _LONG:
            size, at = size - _LONG + _LONG * blob[at], at + 1
        symbols.append(blob[at : at + size])
        at += size
    return symbols


def text_of(numbers: Iterable[int], symbols: Sequence[bytes]) -> str:
    """Return the text of symbols without those that are commands, such as the end."""
    pieces = []
    for number in numbers:
        piece = symbols[number]
        if piece.startswith(_BYTE):
            pieces.append(bytes([int(piece[3:5], 16)]))
        elif not (piece.startswith(_SPECIAL) and piece.endswith(b">") and len(piece) > 2):
            pieces.append(piece)
    return b"".join(pieces).decode(errors="replace").replace(SPACE, " ").strip()
