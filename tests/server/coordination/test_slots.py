"""Room for one model's streams: a slot is held until every engine has closed its stream, then the next may enter."""

from __future__ import annotations

import asyncio

import pytest

from server.coordination.admission import Admission, Machine
from server.coordination.slots import ModelRoom, StreamLease
from server.errors import ServerFull
from tests.support.streams.fixed_capacity import FixedCapacity


class Bench:
    """Room for `slots` live streams and one in the background."""

    def __init__(self, slots: int = 2) -> None:
        self.used: list[int] = []
        self.room = ModelRoom(
            Admission(slots, FixedCapacity(slots), follow=False),
            Machine(),
            background_slots=1,
            clock=lambda: 0.0,
            on_change=self.used.append,
        )

    def enter(self, streams: int, *, background: bool = False) -> StreamLease:
        return asyncio.run(self.room.enter(streams, background=background))


def test_a_stereo_call_holds_two_slots_until_both_streams_are_closed() -> None:
    bench = Bench()
    lease = bench.enter(2)
    assert (bench.room.slots_used, bench.used) == (2, [2])
    lease.speech_closed()
    with pytest.raises(ServerFull):
        bench.enter(2)
    lease.speech_closed()
    bench.enter(2)
    assert bench.used == [2, 1, 0, 2]


def test_a_slot_is_held_while_either_engine_has_its_stream_open() -> None:
    bench = Bench(slots=1)
    lease = bench.enter(1)
    lease.has_vad()
    lease.speech_closed()
    with pytest.raises(ServerFull):
        bench.enter(1)
    lease.vad_closed()
    assert bench.room.slots_used == 0


def test_a_cancelled_lease_gives_its_slots_back() -> None:
    bench = Bench()
    bench.enter(2).cancel()
    assert bench.room.slots_used == 0


def test_background_streams_take_no_live_slots() -> None:
    bench = Bench(slots=1)
    bench.enter(1, background=True)
    bench.enter(1)
    for background in (True, False):
        with pytest.raises(ServerFull):
            bench.enter(1, background=background)
    assert bench.room.slots_used == 2


def test_nothing_is_held_once_the_engines_have_stopped() -> None:
    bench = Bench(slots=1)
    bench.enter(1)
    bench.room.clear()
    asyncio.run(asyncio.wait_for(bench.room.empty(), 1.0))
    bench.enter(1)


def test_work_in_the_background_waits_for_a_slot_within_its_limit() -> None:
    async def run() -> None:
        bench = Bench(slots=1)
        lease = await bench.room.enter(1)
        with pytest.raises(ServerFull, match="live streams"):
            await bench.room.enter_in_background(1, within_s=0.0)
        waiting = [asyncio.create_task(bench.room.enter_in_background(1, within_s=30.0)) for _ in range(2)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
        lease.speech_closed()
        done, pending = await asyncio.wait(waiting, timeout=5.0, return_when=asyncio.FIRST_COMPLETED)
        assert (len(done), len(pending)) == (1, 1), "only one of them has the slot for a recording"
        done.pop().result().cancel()
        await asyncio.wait_for(pending.pop(), 5.0)

    asyncio.run(run())
