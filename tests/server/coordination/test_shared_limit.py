"""The limit of a whole server: estimated over all front ends, lowered by late steps of any, and shown by each."""

from __future__ import annotations

import numpy as np
import pytest

from batching.capacity import PERIOD_S, PeriodSteps
from batching.events import BatchDone
from server.coordination.local import LocalCoordinator
from server.errors import ServerFull, ServerNotReady
from tests.support.streams.coordination_bench import STEP_S, Bench, entered, served, turns

BATCH = BatchDone(tuple(range(10)), (None,) * 10, np.zeros((10, 1)), (0.0,) * 10, 0.0, 0.001, 0)


@served(max_streams="auto")
async def test_front_ends_show_the_numbers_of_the_whole_server(bench: Bench) -> None:
    slots, other = bench.slots
    alone = LocalCoordinator(bench.settings, bench.clock).open_slots("en", STEP_S)
    alone.warmed_up(bench.warm_up)
    for _ in range(3):
        bench.clock.advance(0.6)
        for each in bench.slots:
            each.look()
        await turns()
    assert slots.estimate == other.estimate > alone.estimate, "two event loops"
    assert {end.estimate for end in bench.ends} == {slots.estimate}
    assert {end.limit for end in bench.ends} == {min(slots.estimate, 1_024)}
    assert (slots.slowdown, slots.reserved) == (1.0, 0)
    bench.ends[1].close_slots("en")
    bench.server.forget(1)
    bench.clock.advance(0.6)
    slots.look()
    await turns()
    assert slots.estimate == bench.ends[0].estimate == alone.estimate


@served({1: 0.004, 64: 0.1}, max_streams="auto", latency_budget_ms=20)
async def test_admission_follows_the_limit_of_the_whole_server(bench: Bench) -> None:
    leases = []
    for _ in range(3):
        leases += await entered([bench.slots[n % 2].take(1) for n in range(40)], ServerFull)
        bench.clock.advance(0.6)
    assert len(leases) == bench.slots[0].estimate == bench.server.slots_used == 25, "four rows in 8.7 ms"


@served(max_streams=4, rest_s=1.5)
async def test_streams_that_rest_in_any_front_end_leave_room_in_all(bench: Bench) -> None:
    slots, other = bench.slots
    held = [await slots.take(3), await other.take(1)]
    with pytest.raises(ServerFull):
        await other.take(1)
    slots.rest(3)
    await periods(bench, 1, 0.01, 0.01)
    held += [await other.take(3)]
    with pytest.raises(ServerFull):
        await slots.take(1)
    assert len(held) == 3
    assert bench.server.slots_used == 7
    bench.server.forget(0)
    with pytest.raises(ServerFull):
        await other.take(1)
    assert bench.server.slots_used == 4, "and none of those that are left rests"


@served(max_streams=4, rest_s=1.5)
async def test_no_stream_rests_once_the_engines_of_a_front_end_have_stopped(bench: Bench) -> None:
    slots, other = bench.slots
    await slots.take(4)
    slots.rest(4)
    await periods(bench, 1, 0.01, 0.01)
    held = await other.take(4)
    slots.clear()
    await turns()
    with pytest.raises(ServerFull):
        await other.take(1)
    assert held.slots == bench.server.slots_used == 4


async def periods(bench: Bench, count: int, *ages_s: float) -> None:
    """End periods in which the steps of each front end have these ages."""
    for _ in range(count):
        for slots, age_s in zip(bench.slots, ages_s, strict=True):
            slots.ran(BATCH, [age_s] * 10, bench.clock() - 1.0)
        bench.clock.advance(PERIOD_S)
        for slots in bench.slots:
            slots.look()
        await turns()


@pytest.mark.parametrize(("ages_s", "fewer"), [((0.2, 0.2), True), ((0.01, 0.2), True), ((0.01, 0.01), False)])
def test_late_steps_of_any_front_end_lower_the_limit_of_all_until_steps_are_in_time(
    ages_s: tuple[float, ...], fewer: bool
) -> None:
    async def script(bench: Bench) -> None:
        await periods(bench, 1, 0.01, 0.01)
        free = bench.slots[0].estimate
        held = [await slots.take(20) for slots in bench.slots]
        assert len(held) == 2
        await periods(bench, 4, *ages_s)
        limits = {slots.estimate for slots in bench.slots}
        assert len(limits) == 1
        assert (limits.pop() < free / 2, bench.slots[0].reserved > 0) == (fewer, fewer)
        await periods(bench, 60, 0.01, 0.01)
        assert {slots.estimate for slots in bench.slots} == {free}

    Bench(max_streams="auto").run(script)


@served()
async def test_steps_of_a_report_that_is_not_answered_yet_are_in_the_next_one(bench: Bench) -> None:
    slots = bench.slots[0]
    seen: list[PeriodSteps] = []
    bench.server._served["en"].slots.report = lambda steps, _: seen.append(steps)  # type: ignore[method-assign]
    for _ in range(3):  # no answer arrives meanwhile
        slots.ran(BATCH, [0.2] * 10, bench.clock())
        bench.clock.advance(PERIOD_S)
        slots.look()
    await turns()
    bench.clock.advance(PERIOD_S)
    slots.look()
    await turns()
    assert sum(steps.late for steps in seen) == 30
    assert len(seen) == 2


@served(max_streams=1)
async def test_a_full_server_tells_every_front_end_and_again_when_a_slot_is_free(bench: Bench) -> None:
    lease = await bench.slots[0].take(1)
    await turns()
    for end in bench.ends:
        with pytest.raises(ServerFull, match="all streams are taken"):
            end.refuse_if_full()
    lease.cancel()
    await turns()
    for end in bench.ends:
        end.refuse_if_full()
    assert bench.hints == ["all streams are taken", None]


@served()
async def test_a_model_that_no_front_end_serves_any_more_is_not_counted(bench: Bench) -> None:
    for end in bench.ends:
        end.close_slots("en")
    await turns()
    assert bench.server.coordinator.limit == 0.0
    with pytest.raises(ServerNotReady, match="'en' is not loaded"):
        await bench.slots[0].take(1)


def test_refused_clients_are_spread_over_the_front_ends() -> None:
    async def script(bench: Bench) -> None:
        bench.clock.advance(0.6)
        bench.slots[0].look()
        await turns()
        waits = [bench.ends[0].retry_after_s(1) for _ in range(200)]
        assert waits[-1] == 9, "twenty-five a second: the other front end does the same"

    Bench().run(script)
