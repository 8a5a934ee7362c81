"""Room for one model's streams: a slot is held until every engine has closed its stream, then the next may enter."""

from __future__ import annotations

import asyncio

import pytest

from batching.capacity import Capacity
from server.coordination.admission import Admission, Machine
from server.coordination.model_room import ModelRoom
from server.errors import ServerFull


class Bench:
    """Room for `slots` live streams and one in the background."""

    def __init__(self, slots: int = 2) -> None:
        capacity = Capacity(step_s=0.08, objective_s=0.1, max_batch=8)
        self.used: list[int] = []
        self.room = ModelRoom(
            Admission(slots, capacity, follow=False),
            Machine(),
            background_slots=1,
            clock=lambda: 0.0,
            busy_clock=lambda: 0.0,
            on_change=self.used.append,
        )


def test_a_stereo_call_holds_two_slots_until_both_streams_are_closed() -> None:
    bench = Bench()
    lease = bench.room.enter(2)
    assert (bench.room.slots_used, bench.used) == (2, [2])
    lease.speech_closed()
    with pytest.raises(ServerFull):
        bench.room.enter(2)
    lease.speech_closed()
    bench.room.enter(2)
    assert bench.used == [2, 1, 0, 2]


def test_a_slot_is_held_while_either_engine_has_its_stream_open() -> None:
    bench = Bench(slots=1)
    lease = bench.room.enter(1)
    lease.has_vad()
    lease.speech_closed()
    with pytest.raises(ServerFull):
        bench.room.enter(1)
    lease.vad_closed()
    assert bench.room.slots_used == 0


def test_a_cancelled_lease_gives_its_slots_back() -> None:
    bench = Bench()
    bench.room.enter(2).cancel()
    assert bench.room.slots_used == 0


def test_background_streams_take_no_live_slots() -> None:
    bench = Bench(slots=1)
    bench.room.enter(1, background=True)
    bench.room.enter(1)
    for background in (True, False):
        with pytest.raises(ServerFull):
            bench.room.enter(1, background=background)
    assert bench.room.slots_used == 2


def test_nothing_is_held_once_the_engines_have_stopped() -> None:
    bench = Bench(slots=1)
    bench.room.enter(1)
    bench.room.clear()
    asyncio.run(asyncio.wait_for(bench.room.empty(), 1.0))
    bench.room.enter(1)


def test_work_in_the_background_waits_for_a_slot_within_its_limit() -> None:
    async def run() -> None:
        bench = Bench(slots=1)
        lease = bench.room.enter(1)
        with pytest.raises(ServerFull, match="live streams"):
            await bench.room.wait_in_background(1, within_s=0.0)
        waiting = asyncio.create_task(bench.room.wait_in_background(1, within_s=30.0))
        await asyncio.sleep(0)
        assert not waiting.done()
        lease.speech_closed()
        await asyncio.wait_for(waiting, 5.0)

    asyncio.run(run())
