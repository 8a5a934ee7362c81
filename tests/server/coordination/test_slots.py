"""Slots of models: a slot is held until every engine has closed its stream; how many streams are admitted, and when."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from batching.capacity import PERIOD_S, Capacity, LatencyObjective, PeriodSteps
from batching.events import BatchDone
from server.coordination.slots import FREE_AT_ONCE, SlotLimits, Slots, StreamLease
from server.errors import ServerFull
from tests.support.servers.fakes import FakeClock


class FixedCapacity(Capacity):
    """A capacity with a given limit."""

    def __init__(self, streams: int) -> None:
        super().__init__(LatencyObjective(step_s=0.08, objective_s=0.1))
        self.limit = streams

    def streams(self) -> int:
        return self.limit


class Bench:
    """Slots for `slots` live streams and one in the background."""

    def __init__(self, slots: int = 2) -> None:
        self.used: list[int] = []
        limits = SlotLimits(slots, 1, follow=False, connected=slots)
        self.slots = Slots(FixedCapacity(slots), limits, lambda: 0.0, self.used.append)

    def take(self, streams: int, *, background: bool = False) -> StreamLease:
        return asyncio.run(self.slots.take(streams, background=background))


def counted(batch: BatchDone, ages_s: list[float]) -> PeriodSteps:
    """Return the sums after this batch."""
    slots = Bench().slots
    slots.look()
    slots.ran(batch, ages_s, 0.0)
    return slots._steps


def test_batches_are_counted_with_their_late_steps_and_the_rows_of_all_processes() -> None:
    batch = BatchDone((1, 2), (None, None), np.zeros((2, 1)), (0.0, 0.0), 0.0, 0.004, 0)
    late_s = 0.75 * 0.1
    ages_s = [late_s, late_s + 0.001, 0.01]
    assert counted(batch, ages_s) == PeriodSteps(live=3, late=1, batches=1, rows=2, step_s=0.004)
    assert counted(batch._replace(rows_in_all=9), []) == PeriodSteps(batches=1, rows=9, step_s=0.004)
    assert counted(batch._replace(steps=2), ages_s) == PeriodSteps(live=3, late=1), "a chunk is no step"


def test_a_period_ends_with_the_first_batch_after_it() -> None:
    clock = FakeClock()
    capacity = FixedCapacity(9)
    seen: list[PeriodSteps] = []
    capacity.end_period = lambda _, steps, streams: seen.append(steps)  # type: ignore[method-assign]
    slots = Slots(capacity, SlotLimits(9, 1, follow=True, connected=9), clock)
    batch = BatchDone((1,), (None,), np.zeros((1, 1)), (0.0,), 0.0, 0.004, 0)
    for _ in range(8):
        slots.ran(batch, [0.01], clock())
        clock.advance(PERIOD_S / 4)
    assert [steps.live for steps in seen] == [1, 4]
    slots.waited(0.3)
    slots.waited(0.1)
    slots.look()
    assert (seen[-1].live, seen[-1].waited_s) == (3, 0.3)


def test_a_stereo_call_holds_two_slots_until_both_streams_are_closed() -> None:
    bench = Bench()
    lease = bench.take(2)
    assert (bench.slots.slots_used, bench.used) == (2, [2])
    lease.closed()
    with pytest.raises(ServerFull):
        bench.take(2)
    lease.closed()
    bench.take(2)
    assert bench.used == [2, 1, 0, 2]


def test_background_streams_take_no_live_slots() -> None:
    bench = Bench(slots=1)
    bench.take(1, background=True)
    bench.take(1)
    for background in (True, False):
        with pytest.raises(ServerFull):
            bench.take(1, background=background)
    assert bench.slots.slots_used == 2


def test_nothing_is_held_once_the_engines_have_stopped() -> None:
    bench = Bench(slots=1)
    bench.take(1)
    bench.slots.clear()
    asyncio.run(asyncio.wait_for(bench.slots.empty(), 20.0))
    bench.take(1)


# Admission up to a number or the capacity of a model.


class Server:
    """A server whose models have given capacities."""

    def __init__(self, *streams: int, slots: int = 1_024, connected: int = 0, follow: bool = True) -> None:
        self.clock = FakeClock()
        self.capacities = [FixedCapacity(each) for each in streams]
        self.models: list[Slots] = []
        limits = SlotLimits(slots, 1, follow=follow, connected=connected or slots)
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
    server.models[0].report(PeriodSteps(live=10, late=9), 0)
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


# Streams that rest.


@pytest.mark.parametrize("follow", [True, False])
def test_streams_that_rest_leave_room_for_others_up_to_the_bound_of_connections(follow: bool) -> None:
    server = Server(10, slots=10, connected=25, follow=follow)
    slots = server.models[0]
    assert server.arrive_slowly(20) == 10
    slots.rest(8)
    assert (slots.load, server.arrive_slowly(20)) == (2, 8)
    slots.rest(10)
    assert (slots.stepping, server.arrive_slowly(20), slots.live) == (0, 7, 25)
    with pytest.raises(ServerFull):
        slots.refuse_if_full()


def test_when_all_speak_at_once_none_is_cut_and_none_admitted_until_enough_rest_again() -> None:
    server = Server(10, slots=10, connected=40)
    slots = server.models[0]
    for _ in range(3):
        server.arrive_slowly(10)
        slots.rest(10)
    assert (slots.live, slots.load) == (30, 0)
    slots.rest(-30)
    assert (slots.live, slots.load, slots.limit) == (30, 30, 10)
    assert server.arrive_slowly(5) == 0
    slots.rest(25)
    assert server.arrive_slowly(9) == 5


def test_streams_that_rest_cost_other_models_nothing() -> None:
    server = Server(100, 10)
    assert server.arrive_slowly(50) == 50
    server.models[0].rest(50)
    assert server.arrive_slowly(20, model=1) == 10
    server.models[0].rest(-50)
    assert server.models[1].load == 15


def test_the_gauge_of_slots_shows_the_streams_that_do_not_rest() -> None:
    bench = Bench()
    bench.take(2)
    bench.slots.rest(1)
    bench.slots.clear()
    bench.slots.look()
    assert bench.used == [2, 1, 0]
    assert bench.slots.resting == 0


def test_idle_replica_admits_one_session_at_any_limit() -> None:
    assert Server(1).arrive(1, streams=2) == 1  # two channels


def test_without_a_warm_up_only_one_session_is_admitted() -> None:
    slots = Slots(Capacity(LatencyObjective(0.08, 0.1)), SlotLimits(64, 1, follow=True, connected=64), FakeClock())
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
