"""Scores of the recurrent language model: compared with a float reference, independent of the batch, from a file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from model.errors import LanguageModelError
from model.lm.recurrent.model import RecurrentLanguageModel, digest_at, kept_model
from model.lm.text_model import Counts
from tests.support.networks.recurrent_toys import PIECES, WORDS, arrays, reference, toy_model

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
