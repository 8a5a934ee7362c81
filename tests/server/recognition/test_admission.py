"""Who is let in: by slots, or by the estimate, without flapping and without giving everything away at once."""

from __future__ import annotations

import pytest

from batching.capacity import PERIOD_S, Capacity
from server.errors import ServerFull
from server.recognition.admission import FREE_AT_ONCE, Admission

T0 = 8_675_309.25


class Told(Capacity):
    """A capacity that is what the test says."""

    def __init__(self, streams: int) -> None:
        super().__init__(step_s=0.08, objective_s=0.1, max_batch=8)
        self.said = streams

    def streams(self) -> int:
        return self.said


class Door:
    """An admission that follows an estimate, and the streams that it let in."""

    def __init__(self, streams: int, slots: int = 1_024) -> None:
        self.capacity = Told(streams)
        self.admission = Admission(slots, self.capacity, follow=True)
        self.admission.warmed_up({1: 0.001})
        self.now = T0
        self.used = 0

    def ask(self, times: int) -> int:
        """So many streams ask at this moment. Returns: how many came in."""
        came = 0
        for _ in range(times):
            try:
                self.admission.check(self.used, 1, self.now)
            except ServerFull:
                continue
            came += 1
            self.used += 1
        return came

    def wait(self, seconds: float = PERIOD_S) -> None:
        self.now += seconds
        self.admission.look(self.now, 0.0, self.used)


def test_with_a_fixed_number_every_slot_is_given_away_at_once_and_again_as_soon_as_it_is_free() -> None:
    admission = Admission(100, Told(3), follow=False)
    admission.warmed_up({1: 0.001})
    assert (admission.limit, admission.estimate) == (100, 3)
    for used in range(100):
        admission.check(used, 1, T0)
    with pytest.raises(ServerFull):
        admission.check(100, 1, T0)
    with pytest.raises(ServerFull):
        admission.check(99, 2, T0)
    admission.check(99, 1, T0)


def test_the_estimate_is_the_limit_and_the_slots_are_the_limit_of_that() -> None:
    assert Door(20).admission.limit == 20
    assert Door(2_000).admission.limit == 1_024
    assert Door(20).ask(30) == 20


def test_a_crowd_is_let_in_half_the_room_at_a_time() -> None:
    door = Door(400)
    came = []
    for _ in range(6):
        came.append(door.ask(1_000))
        door.wait()
    assert came == [200, 100, 50, 32, 18, 0]
    assert FREE_AT_ONCE == 32


def test_a_limit_that_falls_sends_nobody_away_and_lets_nobody_in() -> None:
    door = Door(40)
    assert door.ask(30) == 30
    door.capacity.said = 20
    door.wait()
    assert (door.admission.limit, door.ask(5)) == (20, 0)


def test_once_full_a_twentieth_must_leave_before_anybody_comes() -> None:
    door = Door(100)
    while door.ask(100):
        door.wait()
    assert door.used == 100
    door.used = 96
    door.wait()
    assert door.ask(10) == 0
    door.used = 94
    door.wait()
    assert door.ask(10) == 6  # up to the limit again, not to 95 only


def test_an_estimate_that_wavers_by_less_than_a_twentieth_does_not_flap() -> None:
    door = Door(100)
    while door.ask(100):
        door.wait()
    for streams in (102, 99, 104, 100, 103):
        door.capacity.said = streams
        door.wait()
        assert door.ask(3) == 0


def test_an_idle_replica_serves_one_session_whatever_it_thinks_of_itself() -> None:
    door = Door(1)
    door.admission.check(0, 2, T0)  # two channels


def test_before_anything_is_known_only_one_session_is_served() -> None:
    admission = Admission(64, Capacity(step_s=0.08, objective_s=0.1, max_batch=8), follow=True)
    assert admission.limit == 0
    admission.check(0, 1, T0)
    with pytest.raises(ServerFull):
        admission.check(1, 1, T0)
