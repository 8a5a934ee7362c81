"""Admission up to a number or the capacity of a model: hysteresis, a few in a period, several models."""

from __future__ import annotations

import pytest

from batching.capacity import PERIOD_S, Capacity, LatencyObjective, PeriodSteps
from server.coordination.slots import FREE_AT_ONCE, SlotLimits, Slots
from server.errors import ServerFull
from tests.support.servers.fakes import FakeClock
from tests.support.streams.fixed_capacity import FixedCapacity


class Server:
    """A server whose models have given capacities."""

    def __init__(self, *streams: int, slots: int = 1_024, follow: bool = True) -> None:
        self.clock = FakeClock()
        self.capacities = [FixedCapacity(each) for each in streams]
        self.models: list[Slots] = []
        limits = SlotLimits(slots, 1, follow=follow)
        self.models += [Slots(each, limits, self.clock, models=self.models) for each in self.capacities]

    def arrive(self, times: int, model: int = 0, streams: int = 1) -> int:
        """Let sessions arrive now; return how many are admitted."""
        admitted = 0
        for _ in range(times):
            try:
                self.models[model].take_now(streams, background=False)
            except ServerFull:
                continue
            admitted += 1
        return admitted

    def arrive_slowly(self, times: int, model: int = 0) -> int:
        """As `arrive`, with a period for each."""
        admitted = 0
        for _ in range(times):
            self.wait()
            admitted += self.arrive(1, model)
        return admitted

    def wait(self) -> None:
        self.clock.advance(PERIOD_S)


def test_fixed_limit_admits_up_to_every_slot_and_again_when_one_is_free() -> None:
    server = Server(3, slots=100, follow=False)
    assert (server.models[0].limit, server.models[0].estimate) == (100, 3)
    assert server.arrive(99) == 99
    assert server.arrive(1, streams=2) == 0
    assert server.arrive(2) == 1
    server.models[0].live -= 1
    assert server.arrive(2) == 1


def test_limit_is_the_capacity_but_never_more_than_the_slots() -> None:
    assert Server(20).models[0].limit == 20
    assert Server(2_000).models[0].limit == 1_024
    assert Server(20).arrive(30) == 20


@pytest.mark.parametrize(
    ("limit", "expected"), [(100, [32, 32, 32, 4, 0]), (400, [100, 75, 56, 42, 32, 32, 32, 31, 0])]
)
def test_simultaneous_arrivals_are_admitted_in_several_periods(limit: int, expected: list[int]) -> None:
    server = Server(limit)
    admitted = []
    for _ in expected:
        admitted.append(server.arrive(1_000))
        server.wait()
    assert admitted == expected
    assert FREE_AT_ONCE == 32


def test_few_enter_at_once_while_steps_are_late() -> None:
    server = Server(400)
    server.models[0].look()
    server.models[0].report(PeriodSteps(live=10, late=9))
    admitted = []
    for _ in range(3):  # late in this period; in the one that ended; in neither
        admitted.append(server.arrive(1_000))
        server.wait()
        server.models[0].look()
    assert admitted == [FREE_AT_ONCE, FREE_AT_ONCE, (400 - 2 * FREE_AT_ONCE) // 4]


def test_falling_limit_closes_no_stream_and_admits_none() -> None:
    server = Server(40)
    assert server.arrive(30) == 30
    server.capacities[0].limit = 20
    server.wait()
    assert (server.models[0].limit, server.arrive(5), server.models[0].live) == (20, 0, 30)


def full(streams: int) -> Server:
    server = Server(streams)
    while server.arrive(streams):
        server.wait()
    assert server.models[0].live == streams
    return server


def test_full_replica_admits_again_below_95_percent_of_the_limit() -> None:
    server = full(100)
    server.models[0].live = 96
    server.wait()
    assert server.arrive(10) == 0
    server.models[0].live = 94
    server.wait()
    assert server.arrive(10) == 6  # up to the limit again, not to 95 only


def test_changes_of_the_limit_below_5_percent_do_not_reopen_a_full_replica() -> None:
    server = full(100)
    for streams in (102, 99, 104, 100, 103):
        server.capacities[0].limit = streams
        server.wait()
        assert server.arrive(3) == 0


def test_idle_replica_admits_one_session_at_any_limit() -> None:
    assert Server(1).arrive(1, streams=2) == 1  # two channels


def test_without_a_warm_up_only_one_session_is_admitted() -> None:
    slots = Slots(Capacity(LatencyObjective(0.08, 0.1)), SlotLimits(64, 1, follow=True), FakeClock())
    assert slots.limit == 0
    slots.take_now(1, background=False)
    with pytest.raises(ServerFull):
        slots.take_now(1, background=False)


def test_one_model_alone_is_admitted_up_to_its_limit() -> None:
    server = Server(100, 10)
    assert server.arrive_slowly(150) == 100
    assert server.models[0].load == 100


def test_costs_of_two_models_add_up() -> None:
    server = Server(100, 10)
    light, heavy = server.models
    assert server.arrive_slowly(50) == 50  # half of the machine
    assert server.arrive_slowly(20, model=1) == 5  # the other half
    assert server.arrive_slowly(20) == 0
    assert (light.load, heavy.load) == (100, 10)
    light.live = 0
    assert server.arrive_slowly(20, model=1) == 5


def test_sums_of_costs_are_not_rounded_against_a_stream_that_fits() -> None:
    server = Server(10, 30)
    server.models[1].live = 9  # three tenths
    assert server.arrive_slowly(20) == 7


def test_a_fixed_number_of_streams_is_that_of_all_models() -> None:
    server = Server(3, 3, slots=100, follow=False)
    assert (server.arrive(60), server.arrive(60, model=1)) == (60, 40)
    server.models[0].live -= 1
    assert server.arrive(2, model=1) == 1
