"""What is due on a live connection, as a function of the last signs of life."""

from __future__ import annotations

import pytest

from server.streaming.flow_control import Deadlines, Due, LiveLimits

LIMITS = LiveLimits(idle_timeout_s=10.0, stall_timeout_s=30.0, write_timeout_s=5.0, max_backlog_s=30.0)


@pytest.mark.parametrize(
    ("signs_s", "owed", "listening", "due"),
    [
        # last heard, last progress, writing since
        ((99.0, 99.0, 100.0), False, True, Due.NOTHING),
        ((90.0, 99.0, 100.0), False, True, Due.IDLE),
        ((90.0, 99.0, 100.0), False, False, Due.NOTHING),  # it is we who do not listen
        ((99.0, 70.0, 100.0), False, True, Due.NOTHING),  # nothing waits for an answer
        ((99.0, 70.0, 100.0), True, True, Due.STALLED),
        ((90.0, 70.0, 100.0), True, True, Due.STALLED),
        ((90.0, 70.0, 95.0), True, True, Due.CUT),  # nothing else can be told to who does not read
    ],
)
def test_what_is_due(signs_s: tuple[float, float, float], owed: bool, listening: bool, due: Due) -> None:
    deadlines = Deadlines(LIMITS, 0.0)
    deadlines.heard_s, deadlines.progress_s, writing_since_s = signs_s
    assert deadlines.due(100.0, writing_since_s, owed=owed, listening=listening) is due


def test_one_looks_again_when_the_next_thing_can_be_due_and_never_at_once() -> None:
    deadlines = Deadlines(LIMITS, 0.0)
    assert deadlines.wait_s(0.0) == 5.0
    assert deadlines.wait_s(8.0) == 2.0
    assert deadlines.wait_s(12.0) == 5.0, "what is over already is not waited for"
    assert deadlines.wait_s(28.0) == 2.0


def test_a_connection_may_last_so_long_and_is_looked_at_when_it_has() -> None:
    limits = LiveLimits(10.0, 30.0, 5.0, 30.0, max_session_s=100.0)
    deadlines = Deadlines(limits, 0.0)
    deadlines.heard_s = deadlines.progress_s = 99.0
    assert deadlines.due(99.0, 99.0, owed=False, listening=True) is Due.NOTHING
    assert deadlines.wait_s(99.0) == 1.0
    assert deadlines.due(100.0, 100.0, owed=False, listening=True) is Due.TOO_LONG
    assert deadlines.wait_s(100.0) == 5.0
