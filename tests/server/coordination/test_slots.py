"""Slots of one model: a slot is held until every engine has closed its stream, then the next may enter."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from batching.capacity import PERIOD_S, PeriodSteps
from batching.events import BatchDone
from server.coordination.slots import SlotLimits, Slots, StreamLease
from server.errors import ServerFull
from tests.support.servers.fakes import FakeClock
from tests.support.streams.fixed_capacity import FixedCapacity


class Bench:
    """Slots for `slots` live streams and one in the background."""

    def __init__(self, slots: int = 2) -> None:
        self.used: list[int] = []
        limits = SlotLimits(slots, 1, follow=False)
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
    slots = Slots(capacity, SlotLimits(9, 1, follow=True), clock)
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
    lease.speech_closed()
    with pytest.raises(ServerFull):
        bench.take(2)
    lease.speech_closed()
    bench.take(2)
    assert bench.used == [2, 1, 0, 2]


def test_a_slot_is_held_while_either_engine_has_its_stream_open() -> None:
    bench = Bench(slots=1)
    lease = bench.take(1)
    lease.has_vad()
    lease.speech_closed()
    with pytest.raises(ServerFull):
        bench.take(1)
    lease.vad_closed()
    assert bench.slots.slots_used == 0


def test_a_cancelled_lease_gives_its_slots_back() -> None:
    bench = Bench()
    bench.take(2).cancel()
    assert bench.slots.slots_used == 0


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
    asyncio.run(asyncio.wait_for(bench.slots.empty(), 1.0))
    bench.take(1)


def test_work_in_the_background_waits_for_a_slot_within_its_limit() -> None:
    async def run() -> None:
        bench = Bench(slots=1)
        lease = await bench.slots.take(1)
        with pytest.raises(ServerFull, match="live streams"):
            await bench.slots.take(1, background=True, within_s=0.0)
        waiting = [asyncio.create_task(bench.slots.take(1, background=True, within_s=30.0)) for _ in range(2)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
        lease.speech_closed()
        done, pending = await asyncio.wait(waiting, timeout=5.0, return_when=asyncio.FIRST_COMPLETED)
        assert (len(done), len(pending)) == (1, 1), "only one of them has the slot for a recording"
        done.pop().result().cancel()
        await asyncio.wait_for(pending.pop(), 5.0)

    asyncio.run(run())
