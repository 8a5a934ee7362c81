"""Time limits of a live connection, as a function of its last activity."""

from __future__ import annotations

import pytest

from server.streaming.closing import ConnectionEvent
from server.streaming.flow_control import Deadlines, LiveLimits

LIMITS = LiveLimits(idle_timeout_s=10.0, stall_timeout_s=30.0, write_timeout_s=5.0, max_backlog_s=30.0)


@pytest.mark.parametrize(
    ("signs_s", "answer_due", "listening", "due"),
    [
        # last message, last progress, writing since
        ((99.0, 99.0, 100.0), False, True, None),
        ((90.0, 99.0, 100.0), False, True, ConnectionEvent.IDLE),
        ((90.0, 99.0, 100.0), False, False, None),  # the client is not read
        ((99.0, 70.0, 100.0), False, True, None),  # no audio waits for the engine
        ((99.0, 70.0, 100.0), True, True, ConnectionEvent.STALLED),
        ((90.0, 70.0, 100.0), True, True, ConnectionEvent.STALLED),
        (
            (90.0, 70.0, 95.0),
            True,
            True,
            ConnectionEvent.SLOW_CONSUMER,
        ),  # it has no effect on the others
    ],
)
def test_the_most_severe_exceeded_limit_is_due(
    signs_s: tuple[float, float, float], answer_due: bool, listening: bool, due: ConnectionEvent | None
) -> None:
    deadlines = Deadlines(LIMITS, 0.0)
    deadlines.received_s, deadlines.progress_s, writing_since_s = signs_s
    assert deadlines.due(100.0, writing_since_s, answer_due=answer_due, listening=listening) is due


def test_the_timer_waits_for_the_next_limit_and_never_fires_at_once() -> None:
    deadlines = Deadlines(LIMITS, 0.0)
    assert deadlines.wait_s(0.0) == 5.0
    assert deadlines.wait_s(8.0) == 2.0
    assert deadlines.wait_s(12.0) == 5.0, "exceeded limits are not waited for"
    assert deadlines.wait_s(28.0) == 2.0


def test_the_timer_fires_at_the_longest_session() -> None:
    limits = LiveLimits(10.0, 30.0, 5.0, 30.0, max_session_s=100.0)
    deadlines = Deadlines(limits, 0.0)
    deadlines.received_s = deadlines.progress_s = 99.0
    assert deadlines.due(99.0, 99.0, answer_due=False, listening=True) is None
    assert deadlines.wait_s(99.0) == 1.0
    assert deadlines.due(100.0, 100.0, answer_due=False, listening=True) is ConnectionEvent.TOO_LONG
    assert deadlines.wait_s(100.0) == 5.0


def test_the_timer_continues_when_every_limit_is_exceeded() -> None:
    """A stream that is leaving ignores its idle, stall and session limits until its ticket is written."""
    deadlines = Deadlines(LiveLimits(10.0, 30.0, 5.0, 30.0, max_session_s=100.0), 0.0)
    assert deadlines.wait_s(1_000.0) == 5.0
