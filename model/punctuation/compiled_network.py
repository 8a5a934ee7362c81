"""Network of the tagger, from the tensors of its file to a call of compiled code. Immutable: any thread may call it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.errors import CheckpointError
from model.int8.memory import KeptArrays, aligned, offsets_of
from model.int8.product import COLUMNS, PANEL_SUMS, packed_shorts
from model.int8.vectors import LANES
from model.machine.compiled import FloatArray
from model.punctuation import step
from model.punctuation.weights import BUCKETS, Arrays, Rows

DILATIONS = (1, 2, 4, 8, 1)
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
        if wrong or embedding % LANES or channels % COLUMNS or channels > MOST_CHANNELS or self.outputs > COLUMNS:
            found = wrong[0] if wrong else f"{channels} channels"
            raise CheckpointError(f"the tagger's weights have another shape or type: {found}; reinstall tutti")
        self._kept = KeptArrays()
        self._model = self._packed(tensors, embedding, channels)
        self._channels = channels

    @property
    def nbytes(self) -> int:
        """Size of the weights in bytes."""
        return self._kept.nbytes

    def logits(self, rows: Rows) -> FloatArray:
        """Logits (T, outputs) of the rows (T, 3) of a text's words."""
        words, channels = len(rows), self._channels
        offsets, size = offsets_of(
            {
                "hidden": 4 * words * channels,
                "inputs": 4 * words * channels,
                "shorts": 2 * (words + 2 * max(DILATIONS) + 1) * channels,
                "offsets": 8 * words,
                "sums": words * channels // COLUMNS * PANEL_SUMS,
                "limits": step.LIMITS_BYTES,
                "multiplier": channels // COLUMNS * PANEL_SUMS,
            }
        )
        memory, found = aligned(size), np.empty((words, self.outputs), np.float32)
        first = int(memory.ctypes.data)
        if words:
            work = step.Work(**{name: first + offset for name, offset in offsets.items()})
            step.tag_words(rows, self._model, work, found)
        return found

    def _packed(self, tensors: Arrays, embedding: int, channels: int) -> step.Model:
        keep = self._kept.keep
        words, endings, beginnings = (
            step.Table(keep(tensors[f"{name}.weight"]), keep(tensors[f"{name}.weight{_SCALE}"])) for name in TABLES
        )
        blocks = [
            step.Block(
                dilation,
                keep(tensors[f"blocks.{i}.norm.weight"]),
                keep(tensors[f"blocks.{i}.norm.bias"]),
                self._linear(tensors, f"blocks.{i}.mix"),
                self._linear(tensors, f"blocks.{i}.out"),
            )
            for i, dilation in enumerate(DILATIONS)
        ]
        return step.Model(
            embedding=embedding,
            channels=channels,
            zeros=keep(np.zeros(channels, np.int32)),
            tables=(words, endings, beginnings),
            input=self._linear(tensors, "input"),
            blocks=tuple(blocks),
            gain=keep(tensors["norm.weight"]),
            shift=keep(tensors["norm.bias"]),
            output=self._linear(tensors, "output"),
        )

    def _linear(self, tensors: Arrays, name: str) -> step.Linear:
        weights = packed_shorts(tensors[f"{name}.weight"])
        scale, bias = (
            _padded(tensors[f"{name}.{kind}"], len(weights) * COLUMNS) for kind in (f"weight{_SCALE}", "bias")
        )
        keep = self._kept.keep
        return step.Linear(keep(weights), weights.shape[1], len(weights), keep(scale), keep(bias))


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
    for i in range(len(DILATIONS)):
        matrices |= {f"blocks.{i}.mix": (channels, 3 * channels), f"blocks.{i}.out": (channels, channels)}
        norms.append(f"blocks.{i}.norm")
    shapes: dict[str, Sequence[int]] = {f"{name}.bias": (shape[0],) for name, shape in matrices.items()}
    shapes |= {f"{norm}.{kind}": (channels,) for norm in norms for kind in ("weight", "bias")}
    matrices |= {"words": (words + 1, embedding), **dict.fromkeys(TABLES[1:], (BUCKETS, embedding))}
    for name, shape in matrices.items():
        shapes |= {f"{name}.weight": shape, f"{name}.weight{_SCALE}": shape[:1]}
    return shapes
