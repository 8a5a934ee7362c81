"""The score of an end of turn: bounds, growth with silence and with the answer, and its inverse."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.turn_ends.score import RAMP_S, delay_of, score_of

ANSWERS = st.none() | st.floats(0.0, 1.0)


@given(silence_s=st.floats(-1.0, 60.0), more_s=st.floats(0.0, 5.0), answer=ANSWERS)
def test_the_score_is_from_0_to_less_than_1_and_never_falls_with_silence(
    silence_s: float, more_s: float, answer: float | None
) -> None:
    before, after = score_of(silence_s, answer), score_of(silence_s + more_s, answer)
    assert 0.0 <= before <= after < 1.0


@given(score=st.floats(0.01, 0.99), answer=ANSWERS)
def test_the_delay_of_a_score_is_its_inverse(score: float, answer: float | None) -> None:
    delay_s = delay_of(score, answer)
    assert delay_s >= 0.0
    assert score_of(delay_s, answer) == pytest.approx(score)
    assert score_of(delay_s + 0.1, answer) > score


@given(silence_s=st.floats(RAMP_S, 2.0), low=st.floats(0.01, 0.98))
def test_a_surer_answer_gives_a_higher_score(silence_s: float, low: float) -> None:
    assert score_of(silence_s, low + 0.01) > score_of(silence_s, low)


def test_no_silence_has_the_score_0_and_a_score_of_1_is_never_reached() -> None:
    assert score_of(0.0) == score_of(-1.0) == score_of(0.0, 1.0) == 0.0
    assert delay_of(1.0) == math.inf
