"""Ends of turns: policies on known silences, weights, held-out policies, and gains with their intervals."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from loadtest.rulers.turns.policies import (
    Policy,
    Span,
    SpanSet,
    area_under_curve,
    figures,
    firings_of_words,
    held_out,
    least_delay,
)
from loadtest.rulers.turns.report import Fold, compared, curve, draw_curves
from loadtest.rulers.turns.silences import silences_of, speech, with_quiet


def span(length_s: float | None, part: str = "A", *, group: str = "g", words: int = 1) -> Span:
    return Span("r", group, part, 1.0, length_s, words)


def test_a_policy_acts_at_its_threshold_not_before_its_least_delay_and_at_its_timeout() -> None:
    spans = SpanSet([span(None), span(None), span(0.4), span(1.0)])
    firings = {0.7: np.array([0.1, math.inf, 0.3, 0.9])}
    found = spans.outcome(Policy(0.7, 0.2, 0.8), firings)
    assert found.delay_s == pytest.approx((0.2 + 0.8) / 2)
    assert found.cut == 1.0, "at 0.3 within 0.4, and at 0.8 within 1.0"
    assert spans.outcome(Policy(0.7, 0.4, 2.0), firings).cut == 0.5, "a hold that is over is not cut"


def test_silences_that_are_no_holds_count_for_nothing() -> None:
    assert SpanSet([span(None), span(0.19), span(0.2), span(5.01)]).sizes == (1.0, 1.0)


def test_the_sweep_finds_the_best_policy_of_silence_alone() -> None:
    spans = SpanSet([span(None), *(span(length_s) for length_s in (0.25, 0.35, 0.55, 0.9))])
    outcomes = spans.sweep({0.5: np.zeros(5)})
    found = figures(outcomes)
    assert found.cut_at_delay == {0.3: 0.75, 0.5: 0.5, 0.8: 0.25}
    assert found.delay_at_cut[0.05] == pytest.approx(0.9)
    assert least_delay(outcomes, -1.0) is None


def test_a_score_that_never_fires_waits_for_the_timeout() -> None:
    spans = SpanSet([span(None), span(0.5)])
    assert min(outcome.delay_s for outcome in spans.sweep({0.5: np.full(2, math.inf)})) == pytest.approx(0.2)


def test_held_out_policies_are_those_of_the_tuning_part() -> None:
    spans = SpanSet([span(None), span(0.4), span(None, "B"), span(0.7, "B")])
    firings = {0.5: np.zeros(4)}
    chosen = held_out(spans.part("A").sweep(firings), firings, spans.part("B"))[0.5]
    assert chosen is not None
    assert chosen.delay_s == pytest.approx(0.4), "part A is never cut from there on"
    assert chosen.cut == 1.0, "part B is"


def test_pairs_of_equal_length_give_ends_and_holds_the_same_words() -> None:
    words = ((None, 1), (None, 2), (0.5, 1), (0.5, 1), (0.5, 3))
    paired = SpanSet([span(length_s, words=count) for length_s, count in words]).of_equal_length()
    firings = {0.5: np.array([0.3, 9.0, 0.0, 9.0, 0.0])}
    assert paired.sizes == (1.0, 1.0)
    assert paired.outcome(Policy(0.5, 0.0, 0.3), firings).cut == 1.0
    assert paired.outcome(Policy(0.5, 0.0, 2.0), firings).cut == 0.5


def test_the_control_fires_at_a_number_of_words() -> None:
    spans = [span(None, words=4), span(0.5, words=2), span(0.5, words=4)]
    firings = firings_of_words(spans)
    assert list(firings) == [2.0, 4.0]
    np.testing.assert_array_equal(firings[4.0], [0.0, np.inf, 0.0])
    assert area_under_curve(spans, [each.words for each in spans]) == 0.75


def test_a_score_that_knows_holds_removes_all_cuts_and_an_equal_one_removes_nothing(tmp_path: Path) -> None:
    groups = [(part, f"{part}{number}") for part in "AB" for number in range(6)]
    each = [span(length_s, part, group=group) for part, group in groups for length_s in (None, 0.9)]
    spans, ends = SpanSet(each), np.array([one.length_s is None for one in each])
    silence = {0.5: np.zeros(len(each))}
    knows = {0.5: np.where(ends, 0.0, np.inf)}
    for after, removed in ((knows, 1.0), (silence, 0.0)):
        folds = [Fold(spans.part(a), spans.part(b), silence, after) for a, b in (("A", "B"), ("B", "A"))]
        gain = compared(folds)[300]
        assert gain.removed == removed
        assert gain.interval == (removed, removed)
        assert gain.cut == (1.0, 1.0 - removed)
    found = curve("knows", spans, knows)
    assert found.held_out[300] is not None
    assert found.held_out[300].cut == 0.0
    assert found.frontier[0] == (0, 0.0)
    draw_curves([found, curve("silence", spans, silence)], tmp_path / "turns.png")
    assert (tmp_path / "turns.png").stat().st_size > 1_000


def test_speech_has_hysteresis_and_blips_are_none() -> None:
    probabilities = [0.0, 0.9, 0.9, 0.4, 0.4, 0.1, 0.9, 0.9, 0.1, *[0.0] * 6, 0.6, 0.6, 0.6, 0.6]
    assert speech(probabilities) == [(1, 5), (15, 19)]
    first, last = silences_of(speech(probabilities))
    assert first == (pytest.approx(5 * 0.032), pytest.approx(10 * 0.032))
    assert last == (pytest.approx(19 * 0.032), None)


def test_two_seconds_of_the_quietest_part_follow_a_recording() -> None:
    loud = np.where(np.arange(8_000) % 2, 900, -900).astype(np.int16)
    quiet = (np.arange(3_200) % 7).astype(np.int16)
    pcm = with_quiet(np.concatenate([loud, quiet, loud]))
    assert len(pcm) == 19_200 + 32_000
    np.testing.assert_array_equal(pcm[19_200:22_400], quiet)
    np.testing.assert_array_equal(pcm[22_400:25_600], quiet[::-1])
