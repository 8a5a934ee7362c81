"""Decoding outside the event loop: order, limits, a responsive loop, and no output after the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import numpy as np
import pytest

from server.audio.decode_queue import MAX_WAITING_BYTES, PIECE_BYTES, ByteRate, DecodeQueue, DecodingPool
from server.audio.decoder import open_decoder
from server.audio.formats import Losses, audio_form
from server.audio.packets import MAX_SILENT_BYTES
from server.errors import BacklogExceeded, MediaError, NoAudio, Undecodable

WAIT_S = 10.0


class Echo:
    """A decoder that returns its input bytes as samples. It waits for its gate, and fails at a `!`."""

    rate, channels = 16_000, 1
    bytes_per_s: float | None = 16_000.0

    def __init__(self, *, inline: bool = False) -> None:
        self.inline = inline
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.threads: set[int] = set()
        self.limits: list[float] = []
        self.held = b""
        self.gap = 0  # pieces of silence left to return
        self.long_tail = False  # the next drain or flush returns two more pieces
        self.losses = Losses()
        self.warnings: list[str] = []

    def feed(self, chunk: bytes, limit_s: float) -> np.ndarray:
        self.entered.set()
        assert self.gate.wait(WAIT_S)
        self.threads.add(threading.get_ident())
        self.limits.append(limit_s)
        if b"?" in chunk:
            raise ZeroDivisionError
        if b"!" in chunk:
            raise Undecodable("it is broken")
        if b"_" in chunk:
            self.gap = 3
        self.gap -= not chunk
        return self._samples(chunk or b" ")

    @property
    def holds(self) -> bool:
        return self.gap > 0

    def drain(self, limit_s: float) -> np.ndarray:
        return self._tail(b"d", limit_s)

    def flush(self, limit_s: float) -> np.ndarray:
        return self._tail(b"f", limit_s)

    def _tail(self, data: bytes, limit_s: float) -> np.ndarray:
        self.limits.append(limit_s)
        if self.long_tail:
            self.long_tail, self.gap = False, 2
            return self._samples(b"t")
        return self._samples(data)

    def _samples(self, data: bytes) -> np.ndarray:
        return np.frombuffer(data, np.uint8).astype(np.int16)[:, None]


class Bench:
    """A decode queue and its receiver, which records samples and actions in order."""

    def __init__(self, decoder: Echo, pool: DecodingPool) -> None:
        self.said: list[str] = []
        self.arrivals: list[float] = []
        self.errors: list[MediaError] = []
        self.progress = 0
        self.has_room = True
        self.changed = asyncio.Event()
        self.decoder = decoder
        self.queue = DecodeQueue(pool, decoder, max_piece_s=20.0, opened_s=0.0)
        self.queue.receiver = self

    def audio(self, chunk: bytes, arrived_s: float) -> None:
        """Add a message of the client."""
        try:
            samples = self.queue.audio(chunk, arrived_s)
        except MediaError as error:
            self.on_bad_audio(error)
        else:
            if samples is not None:
                self.on_samples(samples, arrived_s)

    def on_samples(self, samples: np.ndarray, arrived_s: float) -> None:
        self.said.append(bytes(samples[:, 0].astype(np.uint8)).decode())
        self.arrivals.append(arrived_s)
        self.changed.set()

    def on_progress(self) -> None:
        self.progress += 1
        self.changed.set()

    def on_bad_audio(self, error: MediaError) -> None:
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
        queue = bench.queue
        bench.audio(b"ab", 1.0)
        queue.then(bench.action("configure"))
        bench.audio(b"c", 2.0)
        queue.drain(bench.action("finalize"), 3.0)
        bench.audio(b"d", 4.0)
        queue.flush(bench.action("close"), 5.0)
        await bench.until(lambda: "<close>" in bench.said)
        tails = ("", "") if inline else ("d", "f")  # an inline decoder holds nothing back
        text = f"ab<configure>c{tails[0]}<finalize>d{tails[1]}<close>"
        assert "".join(bench.said) == text
        assert bench.arrivals == sorted(bench.arrivals)

    run(test, inline=inline)


def test_a_long_gap_is_delivered_in_pieces_before_later_audio() -> None:
    async def test(bench: Bench) -> None:
        bench.audio(b"a_", 1.0)
        bench.audio(b"b", 2.0)
        bench.queue.drain(bench.action("finalize"), 3.0)
        await bench.until(lambda: "<finalize>" in bench.said)
        assert bench.said == ["a_", " ", " ", " ", "b", "d", "<finalize>"]
        assert bench.arrivals[:4] == [1.0] * 4

    run(test)


def test_the_end_of_a_stream_is_delivered_in_pieces_as_there_is_room() -> None:
    async def test(bench: Bench) -> None:
        bench.decoder.long_tail = True
        bench.audio(b"a", 1.0)
        bench.queue.flush(bench.action("close"), 2.0)
        await bench.until(lambda: "<close>" in bench.said)
        assert bench.said == ["a", "t", " ", " ", "f", "<close>"]
        assert all(0 < limit <= 20.0 for limit in bench.decoder.limits)
        bench.has_room = False
        bench.queue.drain(bench.action("late"), 3.0)
        assert bench.queue.pending
        bench.has_room = True
        bench.queue.resume()
        await bench.until(lambda: "<late>" in bench.said)

    run(test)


def test_resume_within_on_samples_keeps_the_order() -> None:
    """The tail of a flush is delivered, then its action runs, then the items after it follow."""

    async def test(bench: Bench) -> None:
        queue, on_samples = bench.queue, bench.on_samples
        bench.on_samples = lambda samples, arrived_s: (on_samples(samples, arrived_s), queue.resume())
        queue.drain(bench.action("finalize"), 1.0)
        queue.then(bench.action("configure"))
        bench.audio(b"a", 2.0)
        await bench.until(lambda: "a" in bench.said)
        assert bench.said == ["d", "<finalize>", "<configure>", "a"]

    run(test)


def test_an_inline_decoder_is_called_immediately_on_the_loop() -> None:
    async def test(bench: Bench) -> None:
        bench.audio(b"x", 1.0)
        assert bench.said == ["x"]
        assert bench.decoder.threads == {threading.get_ident()}

    run(test, inline=True)


def test_the_loop_runs_while_a_thread_decodes() -> None:
    async def test(bench: Bench) -> None:
        bench.decoder.gate.clear()
        bench.audio(b"slow", 1.0)
        async with asyncio.timeout(WAIT_S):
            await asyncio.to_thread(bench.decoder.entered.wait, WAIT_S)
        assert bench.said == []  # reached without the loop being blocked
        bench.decoder.gate.set()
        await bench.until(lambda: bench.said == ["slow"])
        assert threading.get_ident() not in bench.decoder.threads

    run(test)


def test_a_message_is_decoded_in_pieces_and_only_while_there_is_room() -> None:
    async def test(bench: Bench) -> None:
        bench.has_room = False
        bench.audio(b"a" * (2 * PIECE_BYTES + 1), 1.0)
        bench.queue.then(bench.action("end"))
        assert not bench.decoder.entered.is_set()
        bench.has_room = True
        bench.queue.resume()
        await bench.until(lambda: "<end>" in bench.said)
        assert [len(text) for text in bench.said[:-1]] == [PIECE_BYTES, PIECE_BYTES, 1]
        assert all(0 < limit <= 20.0 for limit in bench.decoder.limits)

    run(test)


def test_waiting_bytes_are_bounded() -> None:
    async def test(bench: Bench) -> None:
        bench.has_room = False
        message = bytes(PIECE_BYTES)
        for _ in range(MAX_WAITING_BYTES // PIECE_BYTES):
            bench.audio(message, 1.0)
        assert bench.queue.waiting_s == MAX_WAITING_BYTES / 16_000
        assert bench.queue.fill == 1.0
        with pytest.raises(BacklogExceeded):
            bench.audio(message, 1.0)
        bench.queue.close()
        assert not bench.queue.waiting_s
        assert not bench.queue.fill

    run(test)


def test_each_decoded_piece_is_reported_even_without_audio() -> None:
    """The receiver may be waiting for the number of bytes to fall, which only this call reports."""

    async def test(bench: Bench) -> None:
        bench.decoder._samples = lambda data: np.empty((0, 1), np.int16)  # type: ignore[method-assign]
        bench.audio(bytes(3 * PIECE_BYTES), 1.0)
        await bench.until(lambda: bench.progress == 3)
        assert bench.said == []
        assert bench.queue.fill == 0.0

    run(test)


def test_the_length_of_waiting_audio_follows_from_its_format() -> None:
    async def test(bench: Bench) -> None:
        bench.has_room = False
        bench.decoder.bytes_per_s = None
        bench.audio(bytes(3 * PIECE_BYTES), 1.0)
        assert bench.queue.waiting_s == 0.0, "a header is not audio"
        assert bench.queue.fill == 3 * PIECE_BYTES / MAX_WAITING_BYTES
        bench.decoder.bytes_per_s = 384_000.0
        assert bench.queue.waiting_s == 3 * PIECE_BYTES / 384_000

    run(test)


def test_the_rate_of_bytes_follows_what_was_decoded() -> None:
    rate = ByteRate()
    assert rate.bytes_per_s(3_000.0) == 3_000.0
    rate.count(126_000, 0.0)  # a picture of the video
    rate.count(0, 1.0)
    assert rate.bytes_per_s(3_000.0) == 64_500.0
    for _ in range(1_000):
        rate.count(126_000, 1.0)
    assert rate.bytes_per_s(3_000.0) == pytest.approx(126_000, rel=0.01)


def test_bytes_without_audio_are_bounded_for_any_decoder() -> None:
    async def test(bench: Bench) -> None:
        bench.decoder._samples = lambda data: np.empty((0, 1), np.int16)  # type: ignore[method-assign]
        sent = 0
        while sent <= MAX_SILENT_BYTES:
            bench.audio(bytes(2**20), 1.0)
            sent += 2**20
            await bench.until(lambda: not bench.queue.pending)
        assert [type(error) for error in bench.errors] == [NoAudio]

    run(test)


@pytest.mark.parametrize(("bad", "named"), [(b"!", "it is broken"), (b"?", "cannot be decoded")])
@pytest.mark.parametrize("inline", [False, True])
def test_an_error_is_reported_once_and_ends_the_queue(bad: bytes, named: str, inline: bool) -> None:
    if inline and bad == b"?":
        return  # errors in our own code are not caught on the loop

    async def test(bench: Bench) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        bench.audio(b"ok", 1.0)
        bench.audio(bad, 2.0)
        bench.audio(bad, 3.0)
        bench.queue.flush(bench.action("close"), 4.0)
        await bench.until(lambda: bool(bench.errors))
        bench.audio(b"more", 5.0)
        bench.queue.then(bench.action("late"))
        assert bench.said == ["ok"]
        assert len(bench.errors) == 1
        assert named in str(bench.errors[0])

    run(test, inline=inline)


def test_audio_decoded_after_the_end_of_its_stream_is_dropped() -> None:
    async def test(bench: Bench) -> None:
        bench.decoder.gate.clear()
        bench.audio(b"late", 1.0)
        bench.queue.flush(bench.action("close"), 1.0)
        await asyncio.to_thread(bench.decoder.entered.wait, WAIT_S)
        bench.queue.close()
        bench.decoder.gate.set()
        other = Bench(Echo(), bench.queue._pool)
        other.queue.flush(other.action("close"), 1.0)
        await other.until(
            lambda: "<close>" in other.said
        )  # the pool's only thread has finished the first stream's work
        assert bench.said == []
        assert not bench.errors

    run(test)


def test_streams_alternate_on_one_thread() -> None:
    async def test(bench: Bench) -> None:
        other = Bench(Echo(), bench.queue._pool)
        bench.audio(b"a" * 20 * PIECE_BYTES, 1.0)
        other.audio(b"b", 1.0)
        await other.until(lambda: bool(other.said))
        assert len(bench.said) <= 2  # a long message does not block the others

    run(test)


@pytest.mark.parametrize("size", [3, 4, 12, 64])
def test_messages_before_the_decoder_is_found_are_decoded_too(size: int) -> None:
    sent = np.arange(64, dtype=np.int16)
    messages = [sent.tobytes()[at : at + size] for at in range(0, sent.nbytes, size)]
    queue = DecodeQueue(
        DecodingPool(), open_decoder(audio_form("linear16", 8_000), 8_000), max_piece_s=20.0, opened_s=0
    )
    decoded = [queue.audio(message, 0.0) for message in messages]
    assert np.array_equal(np.concatenate([samples for samples in decoded if samples is not None])[:, 0], sent)
    assert queue.frame_bytes == 2
