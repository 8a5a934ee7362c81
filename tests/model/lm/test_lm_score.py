"""The compiled trie against the definition of a back-off model."""

from __future__ import annotations

from typing import Any, cast

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.lm import score
from model.lm.language_model import LanguageModel
from model.lm.score import ROOT
from model.lm.trie import NgramTable, build_trie, sorted_rows
from tests.support.decoding.lm_reference import Model, as_ngrams, backoff_log_prob
from tests.support.decoding.trie_walk import walk

LOG = st.floats(-9.0, 0.0, width=32)

lm_score = cast(Any, numba).njit(cast(Any, score.lm_score).py_func)  # that of the search cannot be called from Python


@st.composite
def models(draw: st.DrawFn) -> tuple[Model, int]:
    """Models of any n-grams: contexts and suffixes may be missing, as in a pruned model."""
    vocabulary, order = draw(st.integers(4, 7)), draw(st.integers(1, 4))
    word = st.integers(0, vocabulary - 1)
    model = {(w,): (draw(LOG), draw(LOG)) for w in range(vocabulary)}
    longer = st.lists(word, min_size=2, max_size=max(order, 2)).map(tuple)
    if order > 1:
        model |= draw(st.dictionaries(longer, st.tuples(LOG, st.sampled_from([0.0, -0.5, -2.0])), max_size=25))
    return model, order


@settings(max_examples=200, deadline=None)
@given(models(), st.lists(st.integers(0, 3), max_size=9))
def test_scores_of_a_sentence_match_the_definition(case: tuple[Model, int], sentence: list[int]) -> None:
    model, order = case
    trie = build_trie(as_ngrams(model, order).tables)
    state = ROOT
    for place, word in enumerate(sentence):
        context = sentence[max(0, place - order + 1) : place]
        log_prob, state = lm_score(*trie.arrays, state, word)
        assert log_prob == pytest.approx(backoff_log_prob(model, context, word), abs=1e-4)


@settings(max_examples=50, deadline=None)
@given(models())
def test_children_are_contiguous_and_sorted(case: tuple[Model, int]) -> None:
    trie = build_trie(as_ngrams(*case).tables)
    nodes = len(trie.word)
    assert trie.first[0] == 1
    assert trie.first[-1] == nodes
    for node in range(nodes):
        children = trie.word[trie.first[node] : trie.first[node + 1]]
        assert (np.diff(children) > 0).all()
    assert trie.word[1 : 1 + trie.first[1] - 1].tolist() == list(range(trie.first[1] - 1))


def test_a_context_without_ngrams_and_weight_is_replaced_by_its_suffix() -> None:
    """Hypotheses that differ only in context words without effect can be merged."""
    model = {(w,): (-1.0, -0.5) for w in range(5)} | {(3, 4): (-0.1, 0.0)}
    trie = build_trie(as_ngrams(model, 3).tables)
    _, after_three = lm_score(*trie.arrays, ROOT, 3)
    _, after_pair = lm_score(*trie.arrays, after_three, 4)
    _, after_four = lm_score(*trie.arrays, ROOT, 4)
    assert after_three != ROOT
    assert after_pair == after_four


def test_a_duplicate_ngram_is_refused() -> None:
    words = NgramTable(np.arange(4, dtype=np.int32)[:, None], *np.zeros((2, 4), np.float32))
    pairs = NgramTable(np.array([[3, 3], [3, 3]], np.int32), *np.zeros((2, 2), np.float32))
    with pytest.raises(ValueError, match="duplicate 2-gram"):
        build_trie([words, pairs])


def test_sentence_starts_and_ends_are_scored_when_asked_for() -> None:
    model: Model = {(0,): (-5.0, 0.0), (1,): (-9.0, -1.0), (2,): (-2.0, 0.0), (3,): (-1.0, 0.0), (1, 3): (-0.25, 0.0)}
    language = LanguageModel.build(as_ngrams(model, 2))
    assert language.score(["a"]) == [-0.25, -2.0]
    assert language.score(["a"], bos=False, eos=False) == [-1.0]
    assert language.score(["nowhere"]) == [-6.0, -2.0]


def test_perplexity_leaves_unknown_words_out() -> None:
    model: Model = {(0,): (-50.0, 0.0), (1,): (-9.0, 0.0), (2,): (-2.0, 0.0), (3,): (-1.0, 0.0)}
    found = LanguageModel.build(as_ngrams(model, 1)).perplexity(["a a", "", "a nowhere"])
    assert (found.sentences, found.words, found.unknown) == (2, 4, 1)
    assert found.perplexity == pytest.approx(np.exp((3 * 1.0 + 2 * 2.0) / 5))
    assert found.unknown_rate == 0.25


def test_the_letter_trie_leads_to_words_and_keeps_the_best_score_below_each_node() -> None:
    model: Model = {(0,): (-9.0, 0.0), (1,): (-9.0, 0.0), (2,): (-9.0, 0.0), (3,): (-3.0, 0.0), (4,): (-1.0, 0.0)}
    tables = as_ngrams(model, 1).tables
    from model.lm.spelling import build_characters

    trie = build_characters(("<unk>", "<s>", "</s>", "Ab", "ab'c"), tables[0].log_prob)
    node = walk(trie.spelling, [0, 1])
    assert (trie.word[node], trie.spelling.best[node]) == (3, -1.0)
    assert trie.word[walk(trie.spelling, [0, 1, 26, 2])] == 4
    assert walk(trie.spelling, [1]) == -1
    assert trie.spelling.best[0] == -1.0


@given(st.integers(1, 1 << 31), st.lists(st.tuples(*[st.integers(0, (1 << 31) - 1)] * 4), min_size=1))
def test_rows_are_sorted_by_their_columns(limit: int, rows: list[tuple[int, ...]]) -> None:
    below = np.array(rows, np.int64) % limit  # of numbers that fit in one of 64 bits, or in several
    table = np.concatenate([below, below]).astype(np.int32)
    assert sorted_rows(table, limit).tolist() == sorted(range(len(table)), key=lambda i: (*table[i].tolist(), i))
