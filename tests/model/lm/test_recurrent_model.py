"""Scores of the recurrent language model: compared with a float reference, independent of the batch, from a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import save_file

from model.errors import LanguageModelError
from model.lm.recurrent.model import INPUT_SCALE, INPUT_ZERO, Counts, RecurrentLanguageModel, digest_at, kept_model
from model.lm.recurrent.pieces import BEGIN_MARK, END, LETTERS, Pieces

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


texts = st.lists(st.lists(st.sampled_from(WORDS), max_size=12), min_size=1, max_size=12)


@settings(max_examples=30, deadline=None)
@given(texts, st.integers(0, 50))
def test_scores_are_those_of_a_reference_in_floats(given: list[list[str]], seed: int) -> None:
    """Only texts whose states are not so close to a rounding boundary that float32 may round them differently."""
    drawn = arrays(seed)
    given = [*given, *([word] for word in WORDS)]
    expected, clear = zip(*(reference(drawn, words) for words in given), strict=True)
    found, chosen = RecurrentLanguageModel(PIECES, drawn, Counts()).score(given), np.array(clear)
    assume(chosen.any())  # all texts share the first state
    np.testing.assert_allclose(found[chosen], np.array(expected)[chosen], rtol=1e-5, atol=1e-4)


@settings(max_examples=30, deadline=None)
@given(texts)
def test_the_score_of_a_text_does_not_depend_on_other_texts(given: list[list[str]]) -> None:
    model = toy_model()
    together = model.score(given)
    assert together.tolist() == [float(model.score([words])[0]) for words in given]
    assert together[::-1].tolist() == model.score(given[::-1]).tolist()


def test_more_texts_than_a_block_has_rows() -> None:
    model = toy_model()
    many = [[one, two, three] for one in WORDS for two in WORDS for three in WORDS[:3]]
    found = model.score(many)
    assert len(found) == len(many) > 500
    assert [float(model.score([words])[0]) for words in many[::37]] == found[::37].tolist()


def test_without_texts_there_are_no_scores_and_an_empty_text_has_that_of_its_end() -> None:
    model = toy_model()
    assert model.score([]).tolist() == []
    assert model.score([[]])[0] == pytest.approx(reference(arrays(), [])[0], abs=1e-4)


def put(path: Path, **changed: object) -> Path:
    save_file(arrays(), path)
    described = {"pieces": PIECES.symbols, "weight": 0.3, "ngram_discount": 0.2, "word_bonus": 0.1} | changed
    path.with_suffix(".json").write_text(json.dumps(described), encoding="utf-8")
    return path


def test_a_model_is_read_from_two_files_and_shared(tmp_path: Path) -> None:
    path = put(tmp_path / "toy.safetensors")
    model = kept_model(path)
    assert model.counts == Counts(weight=0.3, ngram_discount=0.2, word_bonus=0.1)
    digest = digest_at(path)
    assert model.score([["the"]]).tolist() == toy_model().score([["the"]]).tolist()
    assert kept_model(path) is model
    put(path, weight=0.4)
    assert digest_at(path) != digest


def test_another_kind_of_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(LanguageModelError, match=r"cannot read .*none\.safetensors: No such file"):
        RecurrentLanguageModel.load(tmp_path / "none.safetensors")
    for changed in ({"pieces": PIECES.symbols[:-1]}, {"pieces": ["a"]}, {"weight": "much"}):
        with pytest.raises(LanguageModelError, match=r"toy\.safetensors is not an 8-bit recurrent language model"):
            RecurrentLanguageModel.load(put(tmp_path / "toy.safetensors", **changed))
    damaged = put(tmp_path / "toy.safetensors")
    damaged.write_bytes(damaged.read_bytes()[:-100])
    with pytest.raises(LanguageModelError, match="is not an 8-bit recurrent language model"):
        RecurrentLanguageModel.load(damaged)
    wide = arrays()
    wide["head"][0, 0] = 100  # more than the AVX2 instruction can add without saturation
    with pytest.raises(ValueError, match="shapes of the weights do not match"):
        RecurrentLanguageModel(PIECES, wide, Counts())
