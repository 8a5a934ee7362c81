"""Measurement of the event loop: messages of each length hold the same audio, and ratios are those of each round."""

from __future__ import annotations

import pytest

from loadtest.benchmarks.event_loop import MESSAGES_MS, STEP_SAMPLES, messages, step_us, summary
from loadtest.planning.loopback import Window


@pytest.mark.parametrize("length_ms", MESSAGES_MS)
def test_messages_of_each_length_hold_the_same_audio(length_ms: int) -> None:
    steps = [bytes([number]) * 2 * STEP_SAMPLES for number in range(3)]
    sent = messages(steps, length_ms)
    assert b"".join(sent) == b"".join(steps)
    assert {len(message) for message in sent} == {length_ms * 32}


def test_the_cost_of_a_step_is_the_time_of_the_thread_by_rows() -> None:
    assert step_us(Window(loop_s=0.2, batches=100, rows=1_000, decode_s=0.0)) == pytest.approx(200)


def test_a_ratio_is_the_median_of_the_rounds_own_ratios() -> None:
    here, there = [{80: 100.0, 20: 120.0}, {80: 200.0, 20: 220.0}], [{80: 200.0, 20: 240.0}, {80: 250.0, 20: 275.0}]
    found = summary(here, there)
    assert found["80 ms"] == {"here_us": 150, "to_80_ms": 1, "there_us": 225, "there_to_80_ms": 1, "ratio": 0.65}
    assert found["20 ms"]["to_80_ms"] == pytest.approx(1.15)
    assert summary(here, [])["20 ms"] == {"here_us": 170, "to_80_ms": 1.15}
