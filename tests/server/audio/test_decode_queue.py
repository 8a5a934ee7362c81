"""Decoding off the event loop: order is kept, what waits is bounded, the loop is never held, and an end is an end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import numpy as np
import pytest

from server.audio.decode_queue import BYTES_A_SECOND, MAX_WAITING_BYTES, PIECE_BYTES, DecodeQueue, DecodingPool
from server.errors import BacklogExceeded, MediaError, Undecodable

WAIT_S = 10.0


class Echo:
    """A decoder whose samples are its bytes. It waits for its gate, and fails at a `!`."""

    rate, channels = 16_000, 1

    def __init__(self, *, inline: bool = False) -> None:
        self.inline = inline
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.threads: set[int] = set()
        self.limits: list[float] = []
        self.held = b""

    def feed(self, chunk: bytes, limit_s: float) -> np.ndarray:
        self.entered.set()
        assert self.gate.wait(WAIT_S)
        self.threads.add(threading.get_ident())
        self.limits.append(limit_s)
        if b"?" in chunk:
            raise ZeroDivisionError
        if b"!" in chunk:
            raise Undecodable("it is broken")
        return self._samples(chunk)

    def settle(self) -> np.ndarray:
        return self._samples(b"s")

    def flush(self) -> np.ndarray:
        return self._samples(b"f")

    def _samples(self, data: bytes) -> np.ndarray:
        return np.frombuffer(data, np.uint8).astype(np.int16)[:, None]


class Bench:
    """A lane and what came of it, in order."""

    def __init__(self, decoder: Echo, pool: DecodingPool) -> None:
        self.said: list[str] = []
        self.arrivals: list[float] = []
        self.errors: list[MediaError] = []
        self.has_room = True
        self.changed = asyncio.Event()
        self.decoder = decoder
        self.lane = DecodeQueue(
            pool,
            decoder,
            deliver=self._deliver,
            fail=self._fail,
            room=lambda: self.has_room,
            max_piece_s=20.0,
            opened_s=0.0,
        )

    def _deliver(self, samples: np.ndarray, arrived_s: float) -> None:
        self.said.append(bytes(samples[:, 0].astype(np.uint8)).decode())
        self.arrivals.append(arrived_s)
        self.changed.set()

    def _fail(self, error: MediaError) -> None:
        self.errors.append(error)
        self.changed.set()

    def action(self, name: str) -> Callable[[], None]:
        def act() -> None:
            self.said.append(f"<{name}>")
            self.changed.set()

        return act

    async def until(self, done: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not done():
                self.changed.clear()
                await self.changed.wait()


def run(test: Callable[[Bench], Awaitable[None]], *, inline: bool = False) -> None:
    async def whole() -> None:
        pool, decoder = DecodingPool(), Echo(inline=inline)
        try:
            await test(Bench(decoder, pool))
        finally:
            decoder.gate.set()
            pool.close()

    asyncio.run(whole())


@pytest.mark.parametrize("inline", [False, True])
def test_audio_and_frames_keep_their_order(inline: bool) -> None:
    async def test(bench: Bench) -> None:
        lane = bench.lane
        lane.audio(b"ab", 1.0)
        lane.then(bench.action("configure"))
        lane.audio(b"c", 2.0)
        lane.settle(bench.action("finalize"), 3.0)
        lane.audio(b"d", 4.0)
        lane.flush(bench.action("close"), 5.0)
        await bench.until(lambda: "<close>" in bench.said)
        tails = ("", "") if inline else ("s", "f")  # a decoder that works inline holds nothing back
        text = f"ab<configure>c{tails[0]}<finalize>d{tails[1]}<close>"
        assert "".join(bench.said) == text
        assert bench.arrivals == sorted(bench.arrivals)

    run(test, inline=inline)


def test_who_asks_to_go_on_while_it_is_told_of_samples_changes_no_order() -> None:
    """The tail of a flush is delivered, then its action comes, then what waited behind it."""

    async def test(bench: Bench) -> None:
        lane, deliver = bench.lane, bench._deliver
        lane._deliver = lambda samples, arrived_s: (deliver(samples, arrived_s), lane.resume())
        lane.settle(bench.action("finalize"), 1.0)
        lane.then(bench.action("configure"))
        lane.audio(b"a", 2.0)
        await bench.until(lambda: "a" in bench.said)
        assert bench.said == ["s", "<finalize>", "<configure>", "a"]

    run(test)


def test_a_decoder_that_works_inline_is_called_at_once_and_on_the_loop() -> None:
    async def test(bench: Bench) -> None:
        bench.lane.audio(b"x", 1.0)
        assert bench.said == ["x"]
        assert bench.decoder.threads == {threading.get_ident()}

    run(test, inline=True)


def test_the_loop_runs_while_a_thread_decodes() -> None:
    async def test(bench: Bench) -> None:
        bench.decoder.gate.clear()
        bench.lane.audio(b"slow", 1.0)
        async with asyncio.timeout(WAIT_S):
            await asyncio.to_thread(bench.decoder.entered.wait, WAIT_S)
        assert bench.said == []  # and we are here: nothing holds the loop
        bench.decoder.gate.set()
        await bench.until(lambda: bench.said == ["slow"])
        assert threading.get_ident() not in bench.decoder.threads

    run(test)


def test_a_message_is_decoded_in_pieces_and_only_while_there_is_room() -> None:
    async def test(bench: Bench) -> None:
        bench.has_room = False
        bench.lane.audio(b"a" * (2 * PIECE_BYTES + 1), 1.0)
        bench.lane.then(bench.action("end"))
        assert not bench.decoder.entered.is_set()
        bench.has_room = True
        bench.lane.resume()
        await bench.until(lambda: "<end>" in bench.said)
        assert [len(text) for text in bench.said[:-1]] == [PIECE_BYTES, PIECE_BYTES, 1]
        assert all(0 < limit <= 20.0 for limit in bench.decoder.limits)

    run(test)


def test_what_waits_is_bounded() -> None:
    async def test(bench: Bench) -> None:
        bench.has_room = False
        message = bytes(PIECE_BYTES)
        for _ in range(MAX_WAITING_BYTES // PIECE_BYTES):
            bench.lane.audio(message, 1.0)
        assert bench.lane.waiting_s == MAX_WAITING_BYTES / BYTES_A_SECOND
        with pytest.raises(BacklogExceeded):
            bench.lane.audio(message, 1.0)
        bench.lane.close()
        assert not bench.lane.waiting_s

    run(test)


@pytest.mark.parametrize(("bad", "named"), [(b"!", "it is broken"), (b"?", "cannot be decoded")])
@pytest.mark.parametrize("inline", [False, True])
def test_an_error_is_told_once_and_ends_the_lane(bad: bytes, named: str, inline: bool) -> None:
    if inline and bad == b"?":
        return  # our own mistakes are not caught on the loop

    async def test(bench: Bench) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        bench.lane.audio(b"ok", 1.0)
        bench.lane.audio(bad, 2.0)
        bench.lane.audio(bad, 3.0)
        bench.lane.flush(bench.action("close"), 4.0)
        await bench.until(lambda: bool(bench.errors))
        bench.lane.audio(b"more", 5.0)
        bench.lane.then(bench.action("late"))
        assert bench.said == ["ok"]
        assert len(bench.errors) == 1
        assert named in str(bench.errors[0])

    run(test, inline=inline)


def test_nothing_comes_of_what_is_decoded_when_the_stream_ends() -> None:
    async def test(bench: Bench) -> None:
        bench.decoder.gate.clear()
        bench.lane.audio(b"late", 1.0)
        bench.lane.flush(bench.action("close"), 1.0)
        await asyncio.to_thread(bench.decoder.entered.wait, WAIT_S)
        bench.lane.close()
        bench.decoder.gate.set()
        other = Bench(Echo(), bench.lane._pool)
        other.lane.flush(other.action("close"), 1.0)
        await other.until(lambda: "<close>" in other.said)  # the pool's one thread is past the first stream's work
        assert bench.said == []
        assert not bench.errors

    run(test)


def test_streams_take_turns_in_one_thread() -> None:
    async def test(bench: Bench) -> None:
        other = Bench(Echo(), bench.lane._pool)
        bench.lane.audio(b"a" * 20 * PIECE_BYTES, 1.0)
        other.lane.audio(b"b", 1.0)
        await other.until(lambda: bool(other.said))
        assert len(bench.said) <= 2  # a long message does not keep the others waiting

    run(test)
