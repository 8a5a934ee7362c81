"""Kneser-Ney estimation, mixtures and pruning: probabilities sum to 1 and match their definitions."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.lm.trie import SPECIAL_WORDS, START_ID, NgramTable, build_trie
from tests.support.decoding.lm_reference import as_dict, backoff_log_prob
from tutti_asr_lab.training.language_model.counting import count_ngrams, number_words
from tutti_asr_lab.training.language_model.kneser_ney import discounts, estimate
from tutti_asr_lab.training.language_model.mixture import mix, token_log_probs, tune_weights
from tutti_asr_lab.training.language_model.pair_counts import pair_model
from tutti_asr_lab.training.language_model.pruning import prune

WORDS = (*SPECIAL_WORDS, "a", "b", "c", "d")
TEXTS = st.lists(st.lists(st.sampled_from("abcde"), min_size=1, max_size=6).map(" ".join), min_size=1, max_size=12)


def model_of(lines: list[str], order: int, min_counts: tuple[int, ...] = ()) -> list[NgramTable]:
    return estimate(count_ngrams(number_words(lines, WORDS), len(WORDS), order), min_counts)


def assert_distributions(tables: list[NgramTable]) -> None:
    """Check that probabilities sum to 1 after every context of the model, and after some unknown ones."""
    entries = as_dict(tables)
    contexts = {ids[:-1] for ids in entries} | {(3, 4), (6, 5), (0, 0)}
    for context in contexts:
        total = sum(np.exp(backoff_log_prob(entries, context, w)) for w in range(len(WORDS)) if w != START_ID)
        assert total == pytest.approx(1.0, abs=2e-5), context


@settings(max_examples=80, deadline=None)
@given(TEXTS, st.integers(1, 4), st.sampled_from([(), (1, 1, 2), (1, 2), (2, 3)]))
def test_probabilities_sum_to_one(lines: list[str], order: int, min_counts: tuple[int, ...]) -> None:
    assert_distributions(model_of(lines, order, min_counts))


@settings(max_examples=60, deadline=None)
@given(TEXTS, TEXTS, st.integers(1, 3), st.floats(0.05, 0.95))
def test_a_mixture_is_a_distribution_and_gives_weighted_sums(
    one: list[str], two: list[str], order: int, weight: float
) -> None:
    models = [model_of(one, order), model_of(two, max(1, order - 1))]
    mixed = mix(models, [weight, 1 - weight])
    assert_distributions(mixed)
    parts, whole = [as_dict(model) for model in models], as_dict(mixed)
    for ids in whole:
        if ids == (START_ID,):
            continue
        first, second = (np.exp(backoff_log_prob(part, ids[:-1], ids[-1])) for part in parts)
        assert np.exp(whole[ids][0]) == pytest.approx(weight * first + (1 - weight) * second, rel=1e-4)


@settings(max_examples=60, deadline=None)
@given(TEXTS, st.sampled_from([1e-4, 1e-2, 0.1]))
def test_a_pruned_model_is_smaller_and_a_distribution(lines: list[str], threshold: float) -> None:
    full = model_of(lines, 3)
    pruned = prune(full, threshold)
    assert_distributions(pruned)
    assert as_dict(pruned).keys() <= as_dict(full).keys()
    assert len(pruned[0]) == len(full[0])
    everything = prune(full, np.inf)
    assert [len(table) for table in everything[1:]] == [0, 0]


def test_pruning_removes_the_n_grams_that_change_the_model_least() -> None:
    full = model_of(["a b c d", "a b c d", "a b a b", "d c b a", "a d", "b b b"] * 4 + ["d a c"], 3)
    before = [as_dict(prune(full, t)).keys() for t in (0.0, 1e-3, 1e-2, 1e-1)]
    assert all(more >= less for more, less in itertools.pairwise(before))
    held = number_words(["a b c d", "a b a b"], WORDS)
    scores = [token_log_probs(build_trie(prune(full, t)), held).sum() for t in (0.0, 1e-2, np.inf)]
    assert scores[0] >= scores[1] > scores[2]


def test_chen_and_goodmans_discounts() -> None:
    """Counts of counts 8, 4, 2, 1: Y = 1/2, so D1 = 1 - 2 * 1/2 * 4/8 and so on."""
    counts = np.repeat([1, 2, 3, 4], [8, 4, 2, 1])
    assert discounts(counts) == pytest.approx([0.0, 0.5, 1.25, 2.0])


def test_too_few_counts_of_counts_fall_back_to_fixed_discounts() -> None:
    assert discounts(np.array([1, 1, 5])) == pytest.approx([0.0, 0.5, 1.0, 1.5])


def test_the_unigram_probability_depends_on_the_number_of_contexts_not_on_frequency() -> None:
    """The idea of Kneser-Ney smoothing: d always follows c, a follows many words."""
    entries = as_dict(model_of(["c d"] * 9 + ["b a", "c a", "a a", "e a"], 2))
    assert entries[3,][0] > entries[6,][0]
    assert entries[5, 6][0] > entries[5, 3][0]


@settings(max_examples=40, deadline=None)
@given(TEXTS, st.integers(1, 4))
def test_counts_are_those_of_a_plain_loop(lines: list[str], order: int) -> None:
    tables = count_ngrams(number_words(lines, WORDS), len(WORDS), order)
    index = {word: i for i, word in enumerate(WORDS)}
    for n, table in enumerate(tables, 1):
        plain: Counter[tuple[int, ...]] = Counter()
        for line in lines:
            ids = [1, *(index.get(word, 0) for word in line.split()), 2]
            plain.update(tuple(ids[i : i + n]) for i in range(len(ids) - n + 1))
        found = {tuple(ids): count for ids, count in zip(table.ids.tolist(), table.count.tolist(), strict=True)}
        assert {ids: count for ids, count in found.items() if count} == plain
        if n > 1:
            below = tables[n - 2].ids
            assert (below[table.parent] == table.ids[:, :-1]).all()
            assert (below[table.suffix] == table.ids[:, 1:]).all()


def test_the_model_that_fits_the_held_out_text_gets_the_weight() -> None:
    tries = [build_trie(model_of(lines, 2)) for lines in (["a b", "a b c"], ["d d d", "c d"])]
    weights = tune_weights(tries, number_words(["d d", "c d d"], WORDS))
    assert weights.sum() == pytest.approx(1.0)
    assert weights[1] > 0.8


def test_cut_offs_must_not_decrease_with_the_order() -> None:
    with pytest.raises(ValueError, match="least count"):
        model_of(["a b"], 2, (2, 1))


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(1, 100), min_size=1),
    st.dictionaries(st.tuples(st.sampled_from("abcde"), st.sampled_from("abcde")), st.integers(1, 100)),
)
def test_counts_of_pairs_become_a_distribution(words: dict[str, int], pairs: dict[tuple[str, str], int]) -> None:
    assert_distributions(pair_model(words, pairs, WORDS))
