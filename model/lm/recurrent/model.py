"""Recurrent language model: 8-bit weights in `NAME.safetensors`, word pieces and rescoring weights in `NAME.json`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load as load_arrays

from model.errors import LanguageModelError
from model.int8.memory import ALIGNED, aligned
from model.int8.product import COLUMNS, first_sums, packed
from model.int8.product_table import limits_of
from model.int8.quantized import LARGEST_WEIGHT, QuantizedProduct
from model.int8.vectors import LANES
from model.lm.recurrent import step as compiled
from model.lm.recurrent.pieces import Pieces
from model.machine.compiled import DoubleArray

INPUT_SCALE, INPUT_ZERO = 2 / 255, 128
"""Quantization of a hidden state, which lies within ±1."""


@dataclass(frozen=True, slots=True, order=True)
class Counts:
    """Weights for rescoring with the model; zero by default."""

    weight: float = 0.0
    """Weight of the model's log-probability."""
    ngram_discount: float = 0.0
    """Subtracted from the weight of the search's n-gram model when this model is used too."""
    word_bonus: float = 0.0
    """Added for each word."""


class RecurrentLanguageModel:
    """Language model that scores whole texts. Immutable; safe to call from any thread."""

    def __init__(
        self,
        pieces: Pieces,
        arrays: dict[str, NDArray[Any]],
        counts: Counts,
    ) -> None:
        """Pack the weights: `table` (pieces, 3 H) int8, `recurrent` (3 H, H) and `head` (pieces, H) int8 within ±63.

        Each has `NAME_scale` and `NAME_bias`, float32: one per column of the table, one per output of the others.
        Raises: ValueError for arrays of other shapes.
        """
        self.pieces, self.counts = pieces, counts
        count, hidden = arrays["head"].shape
        if (
            count != len(pieces)
            or count % COLUMNS
            or hidden % LANES
            or arrays["table"].shape != (count, 3 * hidden)
            or arrays["recurrent"].shape != (3 * hidden, hidden)
            or max(int(np.abs(arrays[name]).max()) for name in ("recurrent", "head")) > LARGEST_WEIGHT
        ):
            raise ValueError("the shapes of the weights do not match each other or the number of pieces")
        self.hidden = int(hidden)
        self._kept: list[NDArray[Any]] = []  # keeps arrays alive whose addresses `_model` holds
        self._limits = limits_of(INPUT_SCALE, INPUT_ZERO)
        self._model = compiled.Model(
            hidden=self.hidden,
            table=self._keep(arrays["table"].astype(np.int32)),
            table_multiplier=self._keep(arrays["table_scale"]),
            table_bias=self._keep(arrays["table_bias"]),
            recurrent=self._product(arrays, "recurrent"),
            head=self._product(arrays, "head"),
            limits=self._keep(self._limits),
        )

    @classmethod
    def load(cls, path: Path) -> RecurrentLanguageModel:
        """Read a checkpoint. Raises: LanguageModelError when a file is missing, damaged or another kind of model."""
        try:
            described = json.loads(path.with_suffix(".json").read_bytes())
            return cls(
                Pieces(described["pieces"]),
                load_arrays(path.read_bytes()),
                Counts(*(float(described[field.name]) for field in fields(Counts))),
            )
        except OSError as error:
            raise LanguageModelError(f"cannot read recurrent language model {path}: {error.strerror}") from error
        except Exception as error:  # errors of safetensors have no common base class
            raise LanguageModelError(f"{path} is not an 8-bit recurrent language model: {error}") from error

    def score(self, texts: Sequence[Sequence[str]]) -> DoubleArray:
        """Natural log-probability of each text (N,): a sequence of words, and the end of the sentence after it."""
        scores = np.zeros(len(texts), np.float64)
        if not texts:
            return scores
        rows = [self.pieces.of_text(words) for words in texts]
        pieces, ends = np.concatenate(rows), np.cumsum([len(row) for row in rows], dtype=np.int64)
        nodes = len(pieces) + 1
        tree = compiled.Tree(
            nodes=np.empty((nodes, compiled.NODE_INTS), np.int32),
            order=np.empty(nodes, np.int32),
            rows=np.empty(nodes, np.int32),
            values=np.empty(nodes, np.float64),
        )
        kept, work = self._work(len(texts))
        compiled.score_texts(pieces, ends, tree, (self._model, work), scores)
        del kept
        return scores

    def _work(self, texts: int) -> tuple[list[NDArray[np.uint8]], compiled.Work]:
        """Allocate work space for `texts` texts; return it with its addresses. States are zero."""
        hidden, rows, pieces = self.hidden, compiled.ROWS, len(self.pieces)
        sizes = {
            "states": 8 * texts * hidden,
            "inputs": 2 * texts * hidden + ALIGNED,  # kernels read past the last row
            "offsets": 8 * rows,
            "plain_offsets": 8 * rows,
            "recurrent_sums": 12 * rows * hidden,
            "head_sums": 4 * rows * pieces,
            "spare": 4 * hidden,
            "log_probs": 4 * pieces,
        }
        parts = {name: aligned(size) for name, size in sizes.items()}
        parts["inputs"][:] = INPUT_ZERO
        parts["plain_offsets"].view(np.int64)[:] = np.arange(rows) * hidden
        addresses = {name: int(part.ctypes.data) for name, part in parts.items()}
        return list(parts.values()), compiled.Work(texts=texts, **addresses)

    def _product(self, arrays: dict[str, NDArray[Any]], name: str) -> compiled.Product:
        scale = np.asarray(arrays[f"{name}_scale"], np.float32)
        product = QuantizedProduct(arrays[name], scale, arrays[f"{name}_bias"], INPUT_SCALE, INPUT_ZERO)
        weights = packed(product)
        return compiled.Product(
            weights=self._keep(weights),
            groups=weights.shape[1],
            panels=weights.shape[0],
            first=self._keep(first_sums(product)),
            multiplier=self._keep(scale * np.float32(INPUT_SCALE)),
            bias=self._keep(product.bias),
        )

    def _keep(self, array: NDArray[Any]) -> int:
        self._kept.append(np.ascontiguousarray(array))
        return int(self._kept[-1].ctypes.data)


def digest_at(path: Path) -> str:
    """Digest of a model's files, without loading the model. Raises: OSError."""
    return hashlib.sha256(path.read_bytes() + path.with_suffix(".json").read_bytes()).hexdigest()


@lru_cache(maxsize=2)
def kept_model(path: Path) -> RecurrentLanguageModel:
    """Load a model on first use and share it between streams. Raises: LanguageModelError."""
    return RecurrentLanguageModel.load(path)
