"""Measurement of the event loop: messages of each length hold the same audio, and ratios are those of each round."""

from __future__ import annotations

import pytest

from loadtest.benchmarks.event_loop import MESSAGES_MS, STEP_SAMPLES, Cost, messages, summary, too_dear
from loadtest.planning.loopback import Window


@pytest.mark.parametrize("length_ms", MESSAGES_MS)
def test_messages_of_each_length_hold_the_same_audio(length_ms: int) -> None:
    steps = [bytes([number]) * 2 * STEP_SAMPLES for number in range(3)]
    sent = messages(steps, length_ms)
    assert b"".join(sent) == b"".join(steps)
    assert {len(message) for message in sent} == {length_ms * 32}


def test_the_cost_of_a_step_is_the_time_of_the_thread_by_rows() -> None:
    cost = Cost.of(Window(loop_s=0.2, batches=100, rows=1_000, decode_s=0.0))
    assert cost.us == pytest.approx(200)
    assert cost.rows == 10


def test_a_ratio_is_the_median_of_the_rounds_own_ratios() -> None:
    def costs(whole_us: float, quarter_us: float) -> dict[int, Cost]:
        return {80: Cost(whole_us, 2.0), 20: Cost(quarter_us, 3.0)}

    here, there = [costs(100, 120), costs(200, 220)], [costs(200, 240), costs(250, 275)]
    found = summary(here, there)
    assert (found["80 ms"]["here_us"], found["80 ms"]["there_us"], found["80 ms"]["ratio"]) == (150, 225, 0.65)
    assert found["20 ms"]["here_to_80_ms"] == pytest.approx(1.15)
    assert not too_dear(found)
    assert too_dear(summary([costs(100, 141)], []))
    assert summary(here, [])["20 ms"] == {"here_us": 170, "here_rows": 3, "here_to_80_ms": 1.15}
