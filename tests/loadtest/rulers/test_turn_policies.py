"""Ends of turns: policies on known silences, held-out policies, and the silences of recordings."""

from __future__ import annotations

import math

import numpy as np
import pytest

from loadtest.rulers.silences import silences_of, speech, with_quiet
from loadtest.rulers.turn_policies import Span, SpanSet, curve, least_delay


def spans(*lengths_s: float | None, part: str = "A") -> list[Span]:
    return [Span(part, 1.0, length_s) for length_s in lengths_s]


def test_a_policy_acts_at_its_threshold_not_before_its_least_delay_and_at_its_timeout() -> None:
    chosen = SpanSet(spans(None, None, 0.4, 1.0))
    firings = {0.7: np.array([0.1, math.inf, 0.3, 0.9])}
    [found] = chosen.apply(0.7, 0.2, [0.8], firings)
    assert found.delay_s == pytest.approx((0.2 + 0.8) / 2)
    assert found.cut == 1.0, "at 0.3 within 0.4, and at 0.8 within 1.0"
    assert chosen.apply(0.7, 0.4, [2.0], firings)[0].cut == 0.5, "a hold that is over is not cut"


def test_silences_that_are_no_holds_count_for_nothing() -> None:
    assert SpanSet(spans(None, 0.19, 0.2, 5.0, 5.01)).sizes == (1, 2)


def test_the_sweep_finds_the_best_policy_of_silence_alone() -> None:
    chosen = SpanSet(spans(None, 0.25, 0.35, 0.55, 0.9))
    found = chosen.figures({0.5: np.zeros(5)})
    assert found.cut_at_delay == {0.3: 0.75, 0.5: 0.5, 0.8: 0.25}
    assert found.delay_s_at_cut[0.05] == pytest.approx(0.9)
    outcomes = chosen.sweep({0.5: np.full(5, math.inf)})
    assert min(outcome.delay_s for outcome in outcomes) == pytest.approx(0.2), "without a score, the timeout"
    assert least_delay(outcomes, -1.0) is None


def test_held_out_policies_are_those_of_the_tuning_part() -> None:
    found = curve([*spans(None, 0.4), *spans(None, 0.7, part="B")], {0.5: np.zeros(4)})
    chosen = found.held_out[0.5]
    assert chosen is not None
    assert chosen.delay_s == pytest.approx(0.4), "part A is never cut from there on"
    assert chosen.cut == 1.0, "part B is"
    assert ((found.all.ends, found.all.holds), (found.part_b.ends, found.part_b.holds)) == ((2, 2), (1, 1))


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
