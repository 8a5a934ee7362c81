"""Decisions are exact over several front ends: quotas, slots, rates and used tickets are counted once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from batching.capacity import PERIOD_S, PeriodSteps
from batching.events import BatchDone
from server.coordination.coordinator import Coordinator
from server.coordination.local import LocalCoordinator
from server.coordination.messages import Notice, RefuseHint, Request
from server.coordination.remote import TOO_FAST_S, RemoteCoordinator, RemoteSlots
from server.coordination.serving import CoordinationServer
from server.coordination.slots import SPEECH
from server.errors import Refused, ServerFull, ServerNotReady, TooManyOpenings, TooManyStreams
from server.settings import Settings
from tests.support.servers.fakes import FakeClock

STEP_S = 0.08
BACKGROUND = Settings().upload_slots


encode = msgspec.msgpack.Encoder().encode
decode_sent = msgspec.msgpack.Decoder(Request | Notice).decode


class MemoryChannel:
    """Implements `Channel` in one event loop, by way of bytes: a message arrives in the next turn, in order."""

    def __init__(self, server: CoordinationServer, child: int) -> None:
        self.server = server
        self.child = child
        self.lost = False

    async def request(self, message: Request) -> Any:
        """Send a message; wait for its answer."""
        if self.lost:
            raise ServerNotReady("the supervisor has ended")
        decided: asyncio.Future[asyncio.Future[Any]] = asyncio.get_running_loop().create_future()

        def arrive(data: bytes) -> None:
            if not self.lost:
                answer = self.server.decide(self.child, decode_sent(data))
                if not decided.done():
                    decided.set_result(answer)

        self._send(message, arrive)
        answer = await asyncio.shield(await decided)  # a request that is cancelled here is not cancelled there
        return msgspec.msgpack.decode(encode(answer))

    def tell(self, message: Notice) -> None:
        """Send a message without an answer."""
        if not self.lost:
            self._send(message, self._arrived)

    def _arrived(self, data: bytes) -> None:
        if not self.lost:
            self.server.take(self.child, decode_sent(data))

    def _send(self, message: Request | Notice, arrive: Callable[[bytes], object]) -> None:
        asyncio.get_running_loop().call_soon(arrive, encode(message))


class Bench:
    """One server of decisions and two front ends, each with slots of the model `en`."""

    def __init__(self, warm_up: dict[int, float] | None = None, **settings: Any) -> None:
        front_ends = 2
        self.warm_up = warm_up or {1: 0.0005, 64: 0.004}
        self.settings = Settings(**{"max_openings_per_s": "off", **settings})
        self.clock = FakeClock()
        self.hints: list[str | None] = []
        self.server = CoordinationServer(self.settings, self.clock, on_hint=self._tell, wall_clock=self.clock)
        self.channels = [MemoryChannel(self.server, child) for child in range(front_ends)]
        self.ends = [RemoteCoordinator(self.settings, channel, self.clock) for channel in self.channels]
        self.used: list[int] = [0] * front_ends
        self.slots: list[RemoteSlots] = []

    async def open(self) -> None:
        """Let every front end serve the model, and report its warm-up."""
        for child, end in enumerate(self.ends):
            self.slots.append(end.open_slots("en", STEP_S, lambda used, child=child: self._use(child, used)))
        for slots in self.slots:
            slots.warmed_up(self.warm_up)
        await turns()

    def _use(self, child: int, used: int) -> None:
        self.used[child] = used

    def _tell(self, hint: RefuseHint) -> None:
        self.hints.append(hint.full)
        for end in self.ends:
            end.take(hint)

    def run(self, script: Callable[[Bench], Awaitable[None]]) -> None:
        async def play() -> None:
            await self.open()
            await script(self)

        asyncio.run(play())


def served(*warm_up: dict[int, float], **settings: Any) -> Callable[[Callable[[Bench], Any]], Callable[[], None]]:
    """Run a test that is a coroutine with a bench of these settings."""

    def decorate(test: Callable[[Bench], Any]) -> Callable[[], None]:
        def run() -> None:
            Bench(*warm_up, **settings).run(test)

        run.__doc__ = test.__doc__
        return run

    return decorate


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def entered(attempts: list[Awaitable[Any]], *refused: type[Refused]) -> list[Any]:
    """Return what those attempts got that were not refused; run all at once."""
    outcomes = await asyncio.gather(*attempts, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            assert isinstance(outcome, refused), outcome
    return [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]


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
    done, pending = await asyncio.wait(waiting, timeout=5.0, return_when=asyncio.FIRST_COMPLETED)
    assert (len(done), len(pending)) == (1, 1), "only one has the slots, and the other waits on"
    done.pop().result().cancel()
    await asyncio.wait_for(pending.pop(), 5.0)


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
    await asyncio.wait_for(bench.slots[0].empty(), 1.0)
    await turns()
    assert bench.server.slots_used == 3


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


def batch(*, rows: int = 10, steps: int = 1, step_s: float = 0.001, rows_in_all: int = 0) -> BatchDone:
    return BatchDone(
        tuple(range(rows)), (None,) * rows, np.zeros((rows, 1)), (0.0,) * rows, 0.0, step_s, 0, steps=steps,
        rows_in_all=rows_in_all,
    )  # fmt: skip


async def periods(bench: Bench, count: int, *ages_s: float) -> None:
    """End periods in which the steps of each front end have these ages."""
    for _ in range(count):
        for slots, age_s in zip(bench.slots, ages_s, strict=True):
            slots.ran(batch(), [age_s] * 10, bench.clock() - 1.0)
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
    bench.server._served["en"].slots.report = seen.append  # type: ignore[method-assign]
    for _ in range(3):  # no answer arrives meanwhile
        slots.ran(batch(), [0.2] * 10, bench.clock())
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
