"""Time limits of a live connection, as a function of its last activity."""

from __future__ import annotations

import pytest

from server.streaming.closing import ConnectionEvent
from server.streaming.flow_control import MAX_SESSION_S, WRITE_TIMEOUT_S, Deadlines, LiveLimits

LIMITS = LiveLimits(idle_timeout_s=12.0, stall_timeout_s=30.0, max_backlog_s=30.0)


@pytest.mark.parametrize(
    ("signs_s", "answer_due", "listening", "due"),
    [
        # last message, last progress, writing since
        ((99.0, 99.0, 100.0), False, True, None),
        ((88.0, 99.0, 100.0), False, True, ConnectionEvent.IDLE),
        ((88.0, 99.0, 100.0), False, False, None),  # the client is not read
        ((99.0, 70.0, 100.0), False, True, None),  # no audio waits for the engine
        ((99.0, 70.0, 100.0), True, True, ConnectionEvent.STALLED),
        ((88.0, 70.0, 100.0), True, True, ConnectionEvent.STALLED),
        ((88.0, 70.0, 90.0), True, True, ConnectionEvent.SLOW_CONSUMER),  # it has no effect on the others
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
    assert deadlines.wait_s(0.0) == WRITE_TIMEOUT_S
    assert deadlines.wait_s(8.0) == 4.0
    assert deadlines.wait_s(14.0) == WRITE_TIMEOUT_S, "exceeded limits are not waited for"
    assert deadlines.wait_s(28.0) == 2.0


def test_the_timer_fires_at_the_longest_session() -> None:
    deadlines = Deadlines(LIMITS, 0.0)
    end_s = MAX_SESSION_S
    deadlines.received_s = deadlines.progress_s = end_s - 1.0
    assert deadlines.due(end_s - 1.0, end_s - 1.0, answer_due=False, listening=True) is None
    assert deadlines.wait_s(end_s - 1.0) == 1.0
    assert deadlines.due(end_s, end_s, answer_due=False, listening=True) is ConnectionEvent.TOO_LONG
    assert deadlines.wait_s(end_s) == WRITE_TIMEOUT_S


def test_the_timer_continues_when_every_limit_is_exceeded() -> None:
    """A stream that is leaving ignores its idle, stall and session limits until its ticket is written."""
    assert Deadlines(LIMITS, 0.0).wait_s(2 * MAX_SESSION_S) == WRITE_TIMEOUT_S
