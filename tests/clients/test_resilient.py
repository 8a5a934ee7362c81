"""`open_stream` on real sockets: cut, refused and hung connections, and what its caller receives."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.clients.client_bench import client_tasks
from tests.support.clients.fake_recognition import FakeRecognition, Shape
from tests.support.clients.fake_replica import FakeReplica, Faults
from tutti_asr_client.connection_events import AudioLost, CaughtUp, Connected, Event, TicketRefused, Waiting
from tutti_asr_client.continuity import Beginning
from tutti_asr_client.errors import ClosedAbnormally, Refused, Unreachable
from tutti_asr_client.messages import Channel, Message, Metadata, Results
from tutti_asr_client.resilient import REPLAY_BURST_S, MessageQueue, ResilientClient
from tutti_asr_client.retry import Retry
from tutti_asr_client.stream import open_stream

AT_ONCE = Retry(limit_s=5.0, first_wait_s=0.001, longest_wait_s=0.01)
SHAPE = Shape(rate=16000)
FINALIZE = '{"type":"Finalize"}'
CLOSE = '{"type":"CloseStream"}'


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def said(messages: list[Message]) -> list[tuple[Any, ...]]:
    """Return the finals with audio or of a Finalize."""
    return [
        (round(m.start, 3), round(m.cursor_s, 3), m.text, m.from_finalize)
        for m in messages
        if isinstance(m, Results) and m.is_final and (m.duration or m.from_finalize)
    ]


def undisturbed(*script: bytes | str) -> list[tuple[Any, ...]]:
    server = FakeRecognition(SHAPE)
    rows = []
    for frame in [frame for part in script for frame in server.hear(part)]:
        if frame["type"] == "Results" and frame["is_final"] and (frame["duration"] or frame["from_finalize"]):
            start, text = frame["start"], frame["channel"]["alternatives"][0]["transcript"]
            rows.append((round(start, 3), round(start + frame["duration"], 3), text, frame["from_finalize"]))
    return rows


async def play(stream: ResilientClient, *script: bytes | str, size: int = 2560) -> list[Message]:
    """Send a script in messages as fast as possible, and return everything received."""

    async def say() -> None:
        for part in script:
            if isinstance(part, str):
                await (stream.finalize() if part == FINALIZE else stream.close_stream())
                continue
            for first in range(0, len(part), size):
                await stream.send(part[first : first + size])
                await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        group.create_task(say())
        hearing = group.create_task(_all(stream))
    return hearing.result()


async def _all(stream: ResilientClient) -> list[Message]:
    return [message async for message in stream]


def cut_at(*faults: Faults) -> Callable[[int], Faults]:
    """Return these faults by connection, then none."""
    return lambda number: faults[number] if number < len(faults) else Faults()


script_parts = (noise(40_001), FINALIZE, noise(33_333, 1), CLOSE)
fault_lists = st.lists(
    st.builds(
        Faults,
        refuse=st.sampled_from([0, 0, 0, 0, 503, 429]),
        hear=st.none() | st.integers(1, 30),
        say=st.none() | st.integers(0, 30),
        code=st.sampled_from([None, 1001, 1006, 1011, 1012, 1013]).map(lambda code: None if code == 1006 else code),
        keys=st.sampled_from([None, None, ("other",)]),
    ),
    max_size=5,
)


@pytest.mark.parametrize("keys", [("k",), ()], ids=["tickets", "plain"])
@settings(max_examples=25)
@given(faults=fault_lists)
def test_refused_and_cut_connections_give_the_messages_of_one_stream(
    keys: tuple[str, ...], faults: list[Faults]
) -> None:
    async def main() -> None:
        by_connection = [
            fault if keys else Faults(fault.refuse, None, fault.hear, fault.say, fault.code) for fault in faults
        ]
        async with FakeReplica(cut_at(*by_connection), keys).running() as server:  # noqa: SIM117 - one line would be too long
            async with open_stream(server.url, resumable=bool(keys), retry=AT_ONCE) as stream:
                received = await play(stream, *script_parts)
        assert said(received) == undisturbed(*script_parts)
        assert isinstance(received[-1], Metadata)
        assert sum(isinstance(message, Metadata) for message in received) == 1
        assert received[-1].duration == pytest.approx(73_334 / 32_000, abs=1e-3)
        assert stream.events.lost_s == 0

    asyncio.run(main())


# One thing at a time


def events_of(events: list[Event], kind: type) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


async def test_connection_events_are_reported_and_counted() -> None:
    events: list[Event] = []
    faults = cut_at(
        Faults(hear=12, code=1012, drain=True), Faults(refuse=503), Faults(hear=14), Faults(keys=("other",))
    )
    async with (
        FakeReplica(faults).running() as server,
        open_stream(server.url, resumable=True, retry=AT_ONCE, on_event=events.append) as stream,
    ):
        received = await play(stream, noise(80_000), CLOSE)
    assert said(received) == undisturbed(noise(80_000), CLOSE)
    assert server.queries[0]["resumable"] == ["true"]
    beginnings = [event.beginning for event in events_of(events, Connected)]
    assert beginnings == [Beginning.NEW, Beginning.TICKET, Beginning.REPLAY]
    assert [type(event.error) for event in events_of(events, Waiting)] == [
        ClosedAbnormally,
        Refused,
        ClosedAbnormally,
    ]
    assert [event.code for event in events_of(events, TicketRefused)] == ["TICKET_FORGED"]
    assert len(events_of(events, CaughtUp)) == 2
    sums = stream.events
    assert (sums.connections, sums.reconnects, sums.resumed, sums.replayed) == (3, 2, 1, 1)
    assert sums.refused_tickets == ["TICKET_FORGED"]
    assert len(sums.resume_s) == len(sums.caught_up_s) == 2
    assert 0 < sums.replayed_s < 5
    assert not events_of(events, AudioLost)


async def test_close_1008_raises_in_the_iteration_and_in_send() -> None:
    async with (
        FakeReplica(lambda _: Faults(hear=3, code=1008)).running() as server,
        open_stream(server.url, retry=AT_ONCE) as stream,
    ):
        for _ in range(3):
            await stream.send(noise(2_000))
        with pytest.raises(ClosedAbnormally) as closed:
            await _all(stream)
        assert closed.value.code == 1008
        with pytest.raises(ClosedAbnormally):
            await stream.send(noise(10))
        assert server.handshakes == 1


async def test_a_lost_server_raises_in_iteration_and_send_when_the_budget_is_spent() -> None:
    async with contextlib.AsyncExitStack() as stack:
        async with FakeReplica(keys=()).running() as server:
            patience = Retry(limit_s=0.2, first_wait_s=0.01)
            stream = await stack.enter_async_context(open_stream(server.url, retry=patience, held_s=3))
            await stream.send(noise(16_000))
            await server.until(lambda: bool(server.streams and server.streams[0].received_audio))

        async def speak() -> None:
            while True:  # until the log is full, and then until it fails
                await stream.send(noise(16_000))

        for task in (asyncio.create_task(_all(stream)), asyncio.create_task(speak())):
            with pytest.raises((Unreachable, ClosedAbnormally)):
                await task
        assert stream.events.waits > 0


async def test_replicas_are_tried_in_order_with_one_ticket() -> None:
    async with FakeReplica(cut_at(Faults(hear=12))).running() as one, FakeReplica().running() as other:
        urls = ["ws://127.0.0.1:9", one.url, other.url]  # no server at the first
        async with open_stream(urls, resumable=True, retry=AT_ONCE) as stream:
            received = await play(stream, noise(64_000), CLOSE)
        assert said(received) == undisturbed(noise(64_000), CLOSE)
        assert (one.handshakes, other.handshakes, stream.events.resumed) == (1, 1, 1)


async def test_a_server_without_pongs_is_replaced_by_the_next() -> None:
    async with FakeReplica(cut_at(Faults(hear=12, hang=True))).running() as one, FakeReplica().running() as other:
        urls = [one.url, other.url]
        async with open_stream(urls, resumable=True, retry=AT_ONCE, dead_after_s=0.3) as stream:
            received = await play(stream, noise(64_000), CLOSE)
        assert said(received) == undisturbed(noise(64_000), CLOSE)
        assert other.handshakes == 1


async def test_a_replay_is_rate_limited_and_live_audio_is_not() -> None:
    loop = asyncio.get_running_loop()
    audio = noise(64_000 + 192_000)  # the burst, and six seconds
    async with FakeReplica(keys=()).running() as server:  # noqa: SIM117 - as above
        async with open_stream(server.url, retry=AT_ONCE, replay_speed=5.0) as stream:
            began_s = loop.time()
            await stream.send(audio)
            await server.until(lambda: len(server.streams[0].received_audio) == len(audio))
            assert loop.time() - began_s < 1.2, "nothing was lost, so nothing is delayed"
            server.hang_up()
            began_s = loop.time()
            await stream.close_stream()
            assert said(await _all(stream)) == undisturbed(audio, CLOSE)
            again = len(server.streams[1].received_audio) / 32_000
            assert loop.time() - began_s >= (again - REPLAY_BURST_S) / 5.0 - 0.01


async def test_closing_a_stream_ends_its_tasks() -> None:
    async with FakeReplica().running() as server:
        async with open_stream(server.url, resumable=True) as stream:
            await stream.send(noise(20_000))
            await anext(stream)
            assert client_tasks(), "the check detects them"
        async with open_stream(server.url) as stream:
            stream.abort()
            with pytest.raises(ClosedAbnormally, match="aborted"):
                await _all(stream)
        assert not client_tasks()


async def test_send_after_close_stream_raises() -> None:
    async with FakeReplica().running() as server, open_stream(server.url) as stream:
        await stream.close_stream()
        with pytest.raises(ClosedAbnormally, match="has been closed"):
            await stream.send(noise(2))


async def test_a_full_message_queue_drops_interims_and_keeps_finals() -> None:
    def message(number: int, *, final: bool) -> Results:
        return Results(channel=Channel(()), start=float(number), is_final=final)

    queue = MessageQueue(4)
    for number in range(6):
        await queue.put(message(number, final=number % 2 == 0))
    late = asyncio.create_task(queue.put(message(6, final=True)))
    later = asyncio.create_task(queue.put(message(7, final=False)))
    await asyncio.sleep(0)
    assert (late.done(), later.done()) == (True, False), "four finals are kept, and the next must wait"
    queue.end()
    got = []
    while (one := await queue.get()) is not None:
        got.append((one.start, one.is_final))
        await asyncio.sleep(0)
    assert got == [(0.0, True), (2.0, True), (4.0, True), (6.0, True), (7.0, False)]


async def test_an_error_of_on_event_ends_the_stream_and_is_raised() -> None:
    def fail(_: Event) -> None:
        raise LookupError("no such window")

    async with FakeReplica().running() as server, open_stream(server.url, on_event=fail) as stream:
        with pytest.raises(LookupError, match="no such window"):
            await _all(stream)
        with pytest.raises(LookupError, match="no such window"):
            await stream.send(noise(2))
