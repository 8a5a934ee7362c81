"""Delays of words and finals as the server knows them, with an explicit clock."""

from __future__ import annotations

import pytest

from model.ctc.words import Word
from server.operations.metrics import Metrics
from server.recognition.events import Final, FinalReason, Partial, StepTiming
from server.streaming.outbox import WordDelays

NOW_S = 8_675_309.25
TIMING = StepTiming(NOW_S - 0.05, 0.01, 0.01, 0.01, 0.01, NOW_S - 0.01, 1)  # the step's audio arrived 50 ms ago


def word(text: str, end_s: float) -> Word:
    return Word(text, end_s - 0.2, end_s, 0.9)


ONE, TWO = word("one", 1.0), word("two", 1.4)


def counted(metrics: Metrics) -> list[tuple[int, float]]:
    spreads = (*(metrics.word_delay[kind] for kind in ("shown", "stable", "final")), metrics.time_to_final)
    return [(spread.count, pytest.approx(round(spread.total, 6))) for spread in spreads]


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(max_batch=1, max_streams=1)


def test_each_word_counts_once_from_the_arrival_of_its_end(metrics: Metrics) -> None:
    delays = WordDelays(metrics, lambda: NOW_S)
    delays.observe(Partial(0, 0.0, 1.4, (ONE,), 0), TIMING)  # 0.4 s of audio after it, and 50 ms
    delays.observe(Partial(0, 0.0, 1.5, (ONE,), 0), TIMING)  # shown before
    delays.observe(Partial(0, 0.0, 1.8, (ONE, TWO), 1), TIMING)
    assert counted(metrics) == [(2, 0.45 + 0.45), (1, 0.85), (0, 0.0), (0, 0.0)]
    delays.observe(Final(0, 0.0, 2.0, (ONE, TWO), FinalReason.ENDPOINT), TIMING)
    assert counted(metrics) == [(2, 0.9), (2, 0.85 + 0.65), (2, 1.05 + 0.65), (1, 0.65)]


def test_the_next_segment_and_another_channel_count_anew(metrics: Metrics) -> None:
    delays = WordDelays(metrics, lambda: NOW_S)
    delays.observe(Final(0, 0.0, 1.0, (ONE,), FinalReason.FINALIZE), TIMING)
    delays.observe(Final(0, 1.0, 0.0, (), FinalReason.FINALIZE), TIMING)  # empty: nothing to count
    delays.observe(Partial(0, 1.0, 0.8, (TWO,), 0), TIMING)
    delays.observe(Partial(1, 0.0, 1.8, (TWO,), 0), TIMING)
    assert [count for count, _ in counted(metrics)] == [3, 1, 1, 1]
