"""Decisions are exact over several front ends: quotas, slots, rates and used tickets are counted once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from server.coordination.coordinator import Coordinator
from server.coordination.expected_calls import ExpectedCall
from server.coordination.local import LocalCoordinator
from server.coordination.remote import TOO_FAST_S
from server.coordination.slots import SPEECH
from server.errors import NotAllowed, Refused, ServerFull, ServerNotReady, TooManyOpenings, TooManyStreams
from server.settings import Settings
from tests.support.streams.coordination_bench import STEP_S, Bench, entered, served, turns

BACKGROUND = Settings().upload_slots


@served()
async def test_a_quota_is_exact_over_two_front_ends(bench: Bench) -> None:
    attempts = [bench.ends[n % 2].enter("key", 5, ["address"]) for n in range(40)]
    leases = await entered(attempts, TooManyStreams)
    assert len(leases) == 5
    leases[0].release()
    assert len(await entered([bench.ends[1].enter("key", 5, []) for _ in range(3)], TooManyStreams)) == 1


@served(max_streams=7)
async def test_max_streams_is_exact_over_two_front_ends(bench: Bench) -> None:
    attempts = [bench.slots[n % 2].take(1) for n in range(40)]
    leases = await entered(attempts, ServerFull)
    assert len(leases) == bench.server.slots_used == sum(bench.used) == 7
    leases[0].closed()
    assert len(await entered([bench.slots[1].take(1) for _ in range(3)], ServerFull)) == 1


def test_refusals_have_the_class_and_the_text_of_one_process() -> None:
    settings = {"max_streams": 1, "max_openings_per_s": 0.2}

    async def refusals(coordinator: Coordinator, slots: Any) -> list[tuple[type, str]]:
        await slots.take(1)
        found = []
        for attempt in (
            lambda: slots.take(1),
            lambda: slots.take(BACKGROUND + 1, background=True),
            lambda: slots.take(BACKGROUND + 1, background=True, within_s=0.0),
            lambda: coordinator.enter("key", 0, []),
            lambda: coordinator.enter("key", None, []),
            lambda: coordinator.enter("", None, ["address"]),
            lambda: coordinator.enter("key", 0, ["address"]),
        ):
            with pytest.raises(Refused) as refused:
                await attempt()
            found.append((type(refused.value), str(refused.value)))
        return found

    async def script(bench: Bench) -> None:
        alone = LocalCoordinator(bench.settings, bench.clock)
        slots = alone.open_slots("en", STEP_S)
        slots.warmed_up({1: 0.0005, 64: 0.004})
        expected = await refusals(alone, slots)
        assert await refusals(bench.ends[0], bench.slots[0]) == expected
        assert {kind for kind, _ in expected} == {ServerFull, TooManyStreams, TooManyOpenings}

    Bench(**settings).run(script)


@served()
async def test_a_call_expected_at_one_front_end_comes_to_the_other_with_its_options(bench: Bench) -> None:
    one, other = bench.ends
    call = ExpectedCall("uuid", "alice", (("tag", "vip"), ("redact", "pci")))
    await one.expect_call(call, 10.0)
    with pytest.raises(NotAllowed):
        await other.expect_call(ExpectedCall("uuid", "bob", ()), 10.0)
    assert await other.take_call("uuid", "bob") is None
    assert await other.take_call("uuid") == call
    assert await one.take_call("uuid") is None


@served()
async def test_a_ticket_used_at_one_front_end_is_used_at_the_other(bench: Bench) -> None:
    one, other = bench.ends
    assert not await other.ticket_used(b"ticket")
    one.use_ticket(b"ticket", bench.clock())
    assert await other.ticket_used(b"ticket")
    assert await one.ticket_used(b"ticket")


@served(max_openings_per_s=2)
async def test_openings_are_counted_once_and_a_refused_address_is_refused_early_for_a_moment(bench: Bench) -> None:
    attempts = [bench.ends[n % 2].enter("key", None, ["address", "key key"]) for n in range(40)]
    assert len(await entered(attempts, TooManyOpenings)) == 10, "a burst of five seconds"
    for end in bench.ends:
        with pytest.raises(TooManyOpenings, match="openings per second"):
            end.refuse_if_too_fast("address")
        end.refuse_if_too_fast("other")
    bench.clock.advance(TOO_FAST_S)
    bench.ends[0].refuse_if_too_fast("address")
    with pytest.raises(TooManyOpenings):
        await bench.ends[0].enter("key", None, ["other", "key key"])
    bench.ends[0].refuse_if_too_fast("other")  # the key is too fast, not its address


@served(max_streams=2)
async def test_all_that_a_dead_front_end_held_comes_back(bench: Bench) -> None:
    dead, other = bench.ends
    for _ in range(2):
        await dead.enter("key", 2, [])
    await bench.slots[0].take(2)
    recording = await bench.slots[0].take(BACKGROUND, background=True)
    assert recording.slots == BACKGROUND
    waiting = asyncio.create_task(bench.slots[0].take(1, background=True, within_s=30.0))
    await turns()
    with pytest.raises(TooManyStreams):
        await other.enter("key", 2, [])
    bench.channels[0].lost = True
    waiting.cancel()
    bench.server.forget(0)
    await turns()
    assert bench.server.slots_used == 0
    await other.enter("key", 2, [])
    await bench.slots[1].take(BACKGROUND, background=True, within_s=5.0)
    await bench.slots[1].take(2)
    with pytest.raises(ServerNotReady):
        await bench.slots[0].take(1)


@pytest.mark.parametrize("passed", range(4))
def test_an_opening_that_is_cancelled_holds_nothing_whenever_that_is(passed: int) -> None:
    async def script(bench: Bench) -> None:
        slots = bench.slots[0]
        openings = [
            asyncio.create_task(opening)
            for opening in (
                slots.take(1),
                slots.take(1, background=True, within_s=30.0),
                bench.ends[0].enter("key", 1, []),
            )
        ]
        await turns(passed)
        for task in openings:
            task.cancel()
        outcomes = await asyncio.gather(*openings, return_exceptions=True)
        for outcome in outcomes:  # those that were done before
            if not isinstance(outcome, BaseException):
                getattr(outcome, "cancel", getattr(outcome, "release", None))()
        await turns()
        assert bench.server.slots_used == sum(bench.used) == 0
        await bench.ends[1].enter("key", 1, [])

    Bench().run(script)


@served()
async def test_a_recording_waits_for_slots_that_another_front_end_gives_back(bench: Bench) -> None:
    held = await bench.slots[0].take(BACKGROUND, background=True)
    waiting = [asyncio.create_task(slots.take(BACKGROUND, background=True, within_s=30.0)) for slots in bench.slots]
    await turns()
    assert not any(task.done() for task in waiting)
    held.cancel()
    done, pending = await asyncio.wait(waiting, timeout=20.0, return_when=asyncio.FIRST_COMPLETED)
    assert (len(done), len(pending)) == (1, 1), "only one has the slots, and the other waits on"
    done.pop().result().cancel()
    await asyncio.wait_for(pending.pop(), 20.0)


@served()
async def test_slots_are_held_until_both_engines_have_closed_the_streams_and_come_back_one_by_one(bench: Bench) -> None:
    lease = await bench.slots[0].take(2)
    lease.opened("vad")
    for engine in (SPEECH, SPEECH, "vad"):
        lease.closed(engine)
    await turns()
    assert (bench.server.slots_used, bench.used) == (1, [1, 0])
    lease.closed("vad")
    await turns()
    assert (bench.server.slots_used, bench.used) == (0, [0, 0])


@served()
async def test_no_slot_is_held_once_the_engines_of_a_front_end_have_stopped(bench: Bench) -> None:
    for slots in bench.slots:
        await slots.take(3)
    bench.slots[0].clear()
    await asyncio.wait_for(bench.slots[0].empty(), 20.0)
    await turns()
    assert bench.server.slots_used == 3
