"""Network of the tagger, from the tensors of its file to a call of compiled code. Immutable: any thread may call it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.errors import CheckpointError
from model.int8.product import COLUMNS, packed_shorts
from model.int8.vectors import LANES
from model.machine.compiled import FloatArray
from model.machine.memory import KeptArrays, aligned, offsets_of
from model.punctuation import step
from model.punctuation.weights import BUCKETS, Arrays, Rows

TABLES = ("words", "endings", "beginnings")
_SCALE = ".scale"
MOST_CHANNELS = 2**31 // (3 * 2**7 * 2**15)
"""Largest number of channels of which no sum of a product exceeds 32 bits."""


class CompiledNetwork:
    """Logits of texts, with copies of the weights in the layout of `model.punctuation.step`: 2.6 MB as shipped."""

    def __init__(self, tensors: Arrays, words: int) -> None:
        """`words`: of the vocabulary. Raises: CheckpointError if a tensor is missing or has another shape."""
        try:
            embedding, channels = tensors["words.weight"].shape[1], len(tensors["input.bias"])
            self.outputs = len(tensors["output.bias"])
            shapes = _shapes(words, embedding, channels, self.outputs)
            wrong = [name for name, shape in shapes.items() if not _is(tensors[name], shape)]
        except KeyError as error:
            raise CheckpointError(f"the tagger's weights lack {error}; reinstall tutti") from error
        fits = embedding <= channels <= MOST_CHANNELS and self.outputs <= COLUMNS
        if wrong or not fits or embedding % LANES or channels % COLUMNS:
            found = wrong[0] if wrong else f"{channels} channels"
            raise CheckpointError(f"the tagger's weights have another shape or type: {found}; reinstall tutti")
        self._kept = KeptArrays()
        self._model = self._packed(tensors, embedding, channels)

    @property
    def nbytes(self) -> int:
        """Size of the weights in bytes."""
        return self._kept.nbytes

    def logits(self, rows: Rows) -> FloatArray:
        """Logits (T, outputs) of the rows (T, 3) of a text's words."""
        words = len(rows)
        outputs = np.empty((words, self.outputs), np.float32)
        if words:
            offsets, size = _layout(words, self._model.channels)
            memory = aligned(size)
            first = int(memory.ctypes.data)
            step.tag_words(rows, self._model, step.Work(*(first + offset for offset in offsets)), outputs)
        return outputs

    def _packed(self, tensors: Arrays, embedding: int, channels: int) -> step.Model:
        keep = self._kept.keep
        names = [f"blocks.{i}" for i in range(len(step.DILATIONS))]
        tables = [[keep(tensors[f"{name}.weight{kind}"]) for kind in ("", _SCALE)] for name in TABLES]
        products = [f"{name}.{part}" for name in names for part in ("mix", "out")]
        linears = [self._linear(tensors, name) for name in ("input", *products, "output")]
        norms = [
            [keep(tensors[f"{name}.{kind}"]) for kind in ("weight", "bias")]
            for name in (*(f"{name}.norm" for name in names), "norm")
        ]
        addresses = [keep(np.array(group, np.int64)) for group in (tables, linears, norms)]
        return step.Model(embedding, channels, keep(np.zeros(channels, np.int32)), *addresses)

    def _linear(self, tensors: Arrays, name: str) -> step.Linear:
        weights = packed_shorts(tensors[f"{name}.weight"])
        scale, bias = (
            _padded(tensors[f"{name}.{kind}"], len(weights) * COLUMNS) for kind in (f"weight{_SCALE}", "bias")
        )
        keep = self._kept.keep
        return step.Linear(keep(weights), weights.shape[1], len(weights), keep(scale), keep(bias))


@lru_cache(maxsize=512)
def _layout(words: int, channels: int) -> tuple[list[int], int]:
    """Return the offset of each part of the work space, in the order of `step.Work`, and its size."""
    sizes = {
        "hidden": 4 * words * channels,
        "inputs": 4 * words * channels,
        "shorts": 2 * (words + 2 * max(step.DILATIONS) + 1) * channels,
        "offsets": 8 * words,
        "sums": 4 * words * channels,
        "limits": step.LIMITS_BYTES,
        "multiplier": 4 * channels,
    }
    offsets, size = offsets_of(sizes)
    return [offsets[name] for name in step.Work._fields], size


def _is(tensor: NDArray[Any], shape: Sequence[int]) -> bool:
    """Whether a tensor has this shape and the type of its kind: matrices int8, vectors float32."""
    return tensor.shape == shape and tensor.dtype == (np.int8 if tensor.ndim > 1 else np.float32)


def _padded(vector: NDArray[np.float32], size: int) -> FloatArray:
    padded = np.zeros(size, np.float32)
    padded[: len(vector)] = vector
    return padded


def _shapes(words: int, embedding: int, channels: int, outputs: int) -> dict[str, Sequence[int]]:
    """Return the shape of every tensor by name."""
    matrices = {"input": (channels, embedding), "output": (outputs, channels)}
    norms = ["norm"]
    for i in range(len(step.DILATIONS)):
        matrices |= {f"blocks.{i}.mix": (channels, 3 * channels), f"blocks.{i}.out": (channels, channels)}
        norms.append(f"blocks.{i}.norm")
    shapes: dict[str, Sequence[int]] = {f"{name}.bias": (shape[0],) for name, shape in matrices.items()}
    shapes |= {f"{norm}.{kind}": (channels,) for norm in norms for kind in ("weight", "bias")}
    matrices |= {"words": (words + 1, embedding), **dict.fromkeys(TABLES[1:], (BUCKETS, embedding))}
    for name, shape in matrices.items():
        shapes |= {f"{name}.weight": shape, f"{name}.weight{_SCALE}": shape[:1]}
    return shapes
