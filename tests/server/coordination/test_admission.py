"""Admission by slots or by the estimate: hysteresis, and half of the room in a period."""

from __future__ import annotations

import pytest

from batching.capacity import PERIOD_S, Capacity
from server.coordination.admission import FREE_AT_ONCE, Admission
from server.errors import ServerFull
from tests.support.streams.fixed_capacity import FixedCapacity

T0 = 8_675_309.25


class Following:
    """A replica whose admission follows an estimate."""

    def __init__(self, streams: int, slots: int = 1_024) -> None:
        self.capacity = FixedCapacity(streams)
        self.admission = Admission(slots, self.capacity, follow=True)
        self.admission.update()
        self.now = T0
        self.used = 0

    def arrive(self, times: int) -> int:
        """Let streams arrive now; return how many are admitted."""
        admitted = 0
        for _ in range(times):
            try:
                self.admission.check(self.used, 1, self.now)
            except ServerFull:
                continue
            admitted += 1
            self.used += 1
        return admitted

    def wait(self, seconds: float = PERIOD_S) -> None:
        self.now += seconds
        self.admission.update()


def test_fixed_limit_admits_up_to_every_slot_and_again_when_one_is_free() -> None:
    admission = Admission(100, FixedCapacity(3), follow=False)
    admission.update()
    assert (admission.limit, admission.estimate) == (100, 3)
    for used in range(100):
        admission.check(used, 1, T0)
    with pytest.raises(ServerFull):
        admission.check(100, 1, T0)
    with pytest.raises(ServerFull):
        admission.check(99, 2, T0)
    admission.check(99, 1, T0)


def test_limit_is_the_estimate_but_never_more_than_the_slots() -> None:
    assert Following(20).admission.limit == 20
    assert Following(2_000).admission.limit == 1_024
    assert Following(20).arrive(30) == 20


def test_simultaneous_arrivals_get_half_of_the_room_in_a_period() -> None:
    replica = Following(400)
    admitted = []
    for _ in range(6):
        admitted.append(replica.arrive(1_000))
        replica.wait()
    assert admitted == [200, 100, 50, 32, 18, 0]
    assert FREE_AT_ONCE == 32


def test_falling_limit_closes_no_stream_and_admits_none() -> None:
    replica = Following(40)
    assert replica.arrive(30) == 30
    replica.capacity.estimate = 20
    replica.wait()
    assert (replica.admission.limit, replica.arrive(5)) == (20, 0)


def test_full_replica_admits_again_below_95_percent_of_the_limit() -> None:
    replica = Following(100)
    while replica.arrive(100):
        replica.wait()
    assert replica.used == 100
    replica.used = 96
    replica.wait()
    assert replica.arrive(10) == 0
    replica.used = 94
    replica.wait()
    assert replica.arrive(10) == 6  # up to the limit again, not to 95 only


def test_estimate_changes_below_5_percent_do_not_reopen_a_full_replica() -> None:
    replica = Following(100)
    while replica.arrive(100):
        replica.wait()
    for streams in (102, 99, 104, 100, 103):
        replica.capacity.estimate = streams
        replica.wait()
        assert replica.arrive(3) == 0


def test_idle_replica_admits_one_session_at_any_estimate() -> None:
    replica = Following(1)
    replica.admission.check(0, 2, T0)  # two channels


def test_without_measurements_only_one_session_is_admitted() -> None:
    admission = Admission(64, Capacity(step_s=0.08, objective_s=0.1, max_batch=8), follow=True)
    assert admission.limit == 0
    admission.check(0, 1, T0)
    with pytest.raises(ServerFull):
        admission.check(1, 1, T0)


def test_those_who_are_refused_are_counted_as_asking_too() -> None:
    replica, counted = Following(2), []
    replica.capacity.asked = counted.append  # type: ignore[method-assign]
    assert replica.arrive(5) == 2
    with pytest.raises(ServerFull):
        replica.admission.refuse_if_full(2)
    assert counted == [1, 1, 1, 1, 1, 1]
