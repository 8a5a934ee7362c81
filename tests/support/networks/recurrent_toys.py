"""A recurrent language model with random weights, small enough for a float reference."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.lm.recurrent.model import INPUT_SCALE, INPUT_ZERO, RecurrentLanguageModel
from model.lm.recurrent.pieces import BEGIN_MARK, END, LETTERS, Pieces
from model.lm.text_model import Counts

HIDDEN = 32
LONGER = [
    "_th",
    "_the",
    "er",
    "re",
    "in",
    "on",
    "an",
    "es",
    "ed",
]  # 64 pieces with the letters, as a product's outputs come in 32
PIECES = Pieces(["", *LETTERS, *(BEGIN_MARK + letter for letter in LETTERS), *LONGER])
WORDS = ["the", "there", "other", "an", "inn", "on", "red", "reed", "sees", "he", "her", "hers", "a", "i"]


def arrays(seed: int = 1) -> dict[str, NDArray[Any]]:
    """Return the weights of both products, and the table of gates."""
    rng, count = np.random.default_rng(seed), len(PIECES)
    drawn: dict[str, NDArray[Any]] = {"table": rng.integers(-127, 128, (count, 3 * HIDDEN)).astype(np.int8)}
    for name, outputs in (("recurrent", 3 * HIDDEN), ("head", count)):
        drawn[name] = rng.integers(-63, 64, (outputs, HIDDEN)).astype(np.int8)
    for name, columns, scale in (("table", 3 * HIDDEN, 0.02), ("recurrent", 3 * HIDDEN, 0.02), ("head", count, 0.03)):
        drawn[f"{name}_scale"] = (scale * rng.uniform(0.5, 1.5, columns)).astype(np.float32)
        drawn[f"{name}_bias"] = rng.normal(0, 0.3, columns).astype(np.float32)
    return drawn


def toy_model() -> RecurrentLanguageModel:
    """Return the model with these weights."""
    return RecurrentLanguageModel(PIECES, arrays(), Counts(0.5))


TIE = 2e-4
"""Distance in steps from the midpoint of two steps within which float32 may round a state differently."""

FULL = 0.9999
"""A larger state is at the end of the scale, at the midpoint of two steps, and rounded equally."""


def reference(drawn: dict[str, NDArray[Any]], words: list[str]) -> tuple[float, bool]:
    """Return the log-probability of a text in float64, with states quantized as in the model,

    and whether float32 must round all of them equally.
    """

    def quantized(state: NDArray[np.float64], shift: float = 0.0) -> NDArray[np.float64]:
        return np.clip(np.rint(state / INPUT_SCALE + shift) + INPUT_ZERO, 0, 255) - INPUT_ZERO

    def real(name: str) -> NDArray[np.float64]:
        return drawn[name].astype(np.float64) * drawn[f"{name}_scale"][:, None]

    table = drawn["table"] * drawn["table_scale"].astype(np.float64) + drawn["table_bias"]
    state, before, total, clear = np.zeros(HIDDEN), END, 0.0, True
    for piece in PIECES.of_text(words).tolist():
        product = real("recurrent") @ (INPUT_SCALE * quantized(state)) + drawn["recurrent_bias"]
        gates = table[before]
        reset, update = np.split(1 / (1 + np.exp(-gates[: 2 * HIDDEN] - product[: 2 * HIDDEN])), 2)
        candidate = np.tanh(gates[2 * HIDDEN :] + reset * product[2 * HIDDEN :])
        state = candidate + update * (state - candidate)
        within = state[np.abs(state) < FULL]
        clear &= np.array_equal(quantized(within, -TIE), quantized(within, TIE))
        logits = real("head") @ (INPUT_SCALE * quantized(state)) + drawn["head_bias"]
        total += logits[piece] - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
        before = piece
    return float(total), clear
