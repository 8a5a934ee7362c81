"""Intervals of error rates from resampled recordings."""

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from model.evaluation.scoring import Score, intervals, pooled, report, report_with_intervals, score


def recordings(count, error_rate, words=10, seed=5):
    wrong = np.random.default_rng(seed).binomial(words, error_rate, size=count)
    return [Score(int(errors), words, int(errors), 5 * words, 1) for errors in wrong]


def test_an_interval_is_as_wide_as_the_binomial_distribution_says():
    low, high = intervals(recordings(400, 0.2))["wer_interval"]
    width = 2 * 1.96 * math.sqrt(0.2 * 0.8 / 4_000)
    assert low < 0.2 < high
    assert 0.85 * width < high - low < 1.15 * width


def test_95_of_100_intervals_contain_the_rate():
    limits = [intervals(recordings(60, 0.2, seed=seed))["wer_interval"] for seed in range(100)]
    assert 88 <= sum(low <= 0.2 <= high for low, high in limits) <= 100


def test_one_recording_has_no_interval():
    assert intervals([Score(1, 2, 1, 8, 1)]) == {"wer_interval": None, "cer_interval": None}


def test_recordings_without_words_have_rate_zero():
    assert intervals([Score(1, 0, 3, 0, 1)] * 3)["wer_interval"] == [0.0, 0.0]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=2, max_size=12))
@settings(max_examples=20, deadline=None)
def test_an_interval_is_the_same_each_time_and_within_the_recordings_rates(counts):
    scores = [Score(errors, words, errors, words, 1) for errors, words in counts]
    found = intervals(scores)
    assert found == intervals(scores)
    rates = [s.wer for s in scores]
    low, high = found["wer_interval"]
    assert min(rates) - 1e-4 <= low <= high <= max(rates) + 1e-4


def test_a_report_has_intervals_for_all_and_for_each_source():
    rows = [("x", "one two", "one too"), ("x", "three", "three"), ("y", "four", "")]
    scored = [(source, score(reference, text)) for source, reference, text in rows]
    found = report_with_intervals(scored)
    plain = report(pooled(scored))
    assert {name: found[name] for name in plain if name != "by_source"} == {
        name: value for name, value in plain.items() if name != "by_source"
    }
    assert found["wer_interval"] == intervals([one for _, one in scored])["wer_interval"]
    assert found["by_source"]["x"]["cer_interval"] == intervals([one for _, one in scored[:2]])["cer_interval"]
    assert found["by_source"]["y"]["wer_interval"] is None


def test_characters_of_chinese_have_intervals_and_kinds_of_errors():
    scored = [("zh", score("今天天气好。", text)) for text in ("今天气好", "今天天气很好", "明天天气好")]
    found = report_with_intervals(scored)
    assert (found["words"], found["substitutions"], found["insertions"], found["deletions"]) == (15, 1, 1, 1)
    assert found["wer_interval"] == found["cer_interval"] != [0.0, 0.0]
