"""Live streams are read to their end: every container, in real time and in bursts, with headers of any size."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from server.audio.packets import MAX_SILENT_BYTES
from server.recognition.session_options import Limits
from server.streaming.flow_control import HIGH_WATER, LOW_WATER, Backpressure, LiveLimits
from tests.support.audio.live_containers import (
    chunk,
    flac_with_picture,
    ogg_with_tags,
    video_alone,
    wav,
    webm_pcm,
    webm_with_video,
)
from tests.support.audio.media_files import container, speech
from tests.support.streams.transport_bench import ConnectionBench

LIMITS = Limits(max_backlog_s=30.0)
LIVE = LiveLimits(1e9, 1e9, LIMITS.max_backlog_s)
MESSAGE_S, MESSAGE_BYTES = 0.1, 2**19
PATIENCE = 2_000  # iterations of the event loop without a change after which a stream counts as dead
SECONDS = 3.0

ORDINARY: dict[str, Callable[[], bytes]] = {
    "wav, 16-bit mono": lambda: wav(SECONDS),
    "wav, 8-bit": lambda: wav(SECONDS, bits=8),
    "wav, 24-bit": lambda: wav(SECONDS, bits=24),
    "wav, float stereo at 48 kHz": lambda: wav(SECONDS, rate=48_000, channels=2, bits=32, tag=3),
    "wav, float stereo at 44.1 kHz": lambda: wav(SECONDS, rate=44_100, channels=2, bits=32, tag=3),
    "wav, 16-bit with 4 channels": lambda: wav(SECONDS, rate=48_000, channels=4),
    "wav, 16-bit with 8 channels": lambda: wav(SECONDS, rate=48_000, channels=8),
    "wav, double with 8 channels": lambda: wav(SECONDS, rate=48_000, channels=8, bits=64, tag=3),
    "webm with pcm": lambda: webm_pcm(SECONDS),
    "webm with stereo pcm": lambda: webm_pcm(SECONDS, channels=2),
    "webm with video at 1 Mbit/s": lambda: webm_with_video(SECONDS),
    "webm with video at 8 Mbit/s": lambda: webm_with_video(SECONDS, 8_000_000),
    "ogg": lambda: ogg_with_tags(20, SECONDS),
    "flac": lambda: flac_with_picture(20, SECONDS),
    "flac, stereo at 48 kHz": lambda: container("flac", "flac", speech(48_000, 2), 48_000),
}
HEADERS: dict[str, Callable[[int], bytes]] = {
    "flac with a cover": flac_with_picture,
    "wav with a broadcast chunk": lambda size: wav(2.0, before=chunk(b"bext", size)),
    "wav with a list before the samples": lambda size: wav(2.0, before=chunk(b"LIST", size - 2) + chunk(b"JUNK", 2)),
    "wav with a list after the samples": lambda size: wav(2.0, after=chunk(b"LIST", size)),
    "ogg with a cover": ogg_with_tags,
    "webm with a void": lambda size: webm_pcm(2.0, void=size),
    "webm with a void before video": lambda size: webm_with_video(2.0, void=size),
}


class Client:
    """Sends messages while the server reads, like TCP; the engine answers in every iteration of the event loop."""

    def __init__(self, bench: ConnectionBench) -> None:
        self.bench = bench

    async def send(self, message: bytes) -> None:
        """Wait until the server reads, then send."""
        for _ in range(PATIENCE):
            if self.bench.transport.reading or self.bench.transport.closed is not None:
                break
            await self.turn()
        else:
            pytest.fail("the stream is never read again")
        self.bench.send(message)

    async def turn(self) -> None:
        """Let the pool and the engine process their work."""
        self.bench.answer()
        await asyncio.sleep(0)


def read_s(pieces: list[bytes], *, paced: bool) -> float:
    """Send the pieces, end the stream; return the duration that the server reports."""
    bench = ConnectionBench(LIMITS, LIVE)

    async def script(bench: ConnectionBench) -> None:
        client = Client(bench)
        for piece in pieces:
            await client.send(piece)
            if paced:
                bench.clock.advance(MESSAGE_S)
                for _ in range(4):
                    await client.turn()
        await client.send(b"")

    bench.run(script)
    (summary,) = [frame for frame in bench.frames if frame["type"] == "Metadata"]
    assert bench.transport.closed is not None
    assert bench.transport.closed[0] == 1000
    return float(summary["duration"])


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_audio_is_read_to_its_end_in_real_time(name: str) -> None:
    data = ORDINARY[name]()
    seconds = 2.0 if "flac, stereo" in name else SECONDS
    assert read_s(cut(data, round(len(data) * MESSAGE_S / seconds)), paced=True) == pytest.approx(seconds, abs=0.1)


@pytest.mark.parametrize("name", ORDINARY)
@pytest.mark.parametrize("size", [1_000, 40_000, MESSAGE_BYTES])
def test_ordinary_audio_is_read_to_its_end_in_a_burst(name: str, size: int) -> None:
    seconds = 2.0 if "flac, stereo" in name else SECONDS
    assert read_s(cut(ORDINARY[name](), size), paced=False) == pytest.approx(seconds, abs=0.1)


@pytest.mark.parametrize("name", HEADERS)
@pytest.mark.parametrize("size", [1_000, 100_000, 1_000_001, 4 * 2**20])
@pytest.mark.parametrize("paced", [True, False])
def test_audio_after_a_header_of_any_size_is_read(name: str, size: int, paced: bool) -> None:
    pieces = cut(HEADERS[name](size), 40_000 if paced else 2**20)
    assert read_s(pieces, paced=paced) == pytest.approx(2.0, abs=0.1)


BEYOND = 2 * MAX_SILENT_BYTES
ENDLESS: dict[str, Callable[[], bytes]] = {
    "flac with a cover": lambda: flac_with_picture(MAX_SILENT_BYTES + 1),
    "wav with a list before the samples": lambda: wav(1.0, before=chunk(b"LIST", MAX_SILENT_BYTES)),
    "wav with a list after the samples": lambda: wav(1.0, after=chunk(b"LIST", BEYOND)),
    "ogg with a cover": lambda: ogg_with_tags(BEYOND),
    "webm with a void": lambda: webm_pcm(1.0, void=MAX_SILENT_BYTES),
    "webm with video alone": lambda: webm_with_video(0.2) + video_alone(BEYOND),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_bytes_without_audio_end_the_stream_with_their_own_error(name: str) -> None:
    bench = ConnectionBench(LIMITS, LIVE)

    async def script(bench: ConnectionBench) -> None:
        client = Client(bench)
        for piece in cut(ENDLESS[name](), 2**20):
            if bench.transport.closed is None:
                await client.send(piece)
        for _ in range(PATIENCE):
            await client.turn()

    bench.run(script)
    error = bench.frames[-1]
    assert error["type"] == "Error"
    assert "no audio in 8 MiB" in str(error["description"])
    assert bench.transport.closed is not None
    assert bench.transport.closed[0] == 1008


IDLE_S, STALL_S = 10.0, 30.0
TIMED = LiveLimits(IDLE_S, STALL_S, LIMITS.max_backlog_s)


def test_a_client_is_not_idle_while_reading_is_paused() -> None:
    """The idle timeout starts when reading resumes."""
    bench = ConnectionBench(LIMITS, TIMED)

    async def script(bench: ConnectionBench) -> None:
        client, stream = Client(bench), bench.stream
        data = HEADERS["wav with a broadcast chunk"](2**21)
        await client.send(data[: 2**20])
        await client.send(data[2**20 : 2**20 + 2**19])
        assert not bench.transport.reading
        bench.clock.advance(IDLE_S + 1.0)
        stream._on_timer()
        assert bench.transport.closed is None
        while not bench.transport.reading:
            await client.turn()
        bench.clock.advance(IDLE_S - 1.0)
        stream._on_timer()
        assert bench.transport.closed is None
        while stream._decode_queue.pending:
            await client.turn()
        bench.clock.advance(2.0)
        stream._on_timer()
        await client.turn()
        assert bench.transport.closed is not None
        assert bench.transport.closed[0] == 1011

    bench.run(script)


def test_decoding_a_header_counts_as_progress() -> None:
    """No result is due: each decoded piece is progress, regardless of the total time."""
    bench = ConnectionBench(LIMITS, LiveLimits(1e9, STALL_S, LIMITS.max_backlog_s))

    async def script(bench: ConnectionBench) -> None:
        client, stream = Client(bench), bench.stream
        data = HEADERS["flac with a cover"](2**18)
        await client.send(data[: 2**18])
        pieces = 0
        while stream._decode_queue.pending:
            bench.clock.advance(0.5 * STALL_S)
            stream._on_timer()
            assert bench.transport.closed is None
            await client.turn()
            pieces += 1
        assert pieces > 4
        await client.send(data[2**18 :])
        while stream._decode_queue.pending:
            await client.turn()
        await client.send(b"")

    bench.run(script)
    assert [frame["duration"] for frame in bench.frames if frame["type"] == "Metadata"] == [2.0]


def test_decoding_does_not_hide_a_stalled_engine() -> None:
    bench = ConnectionBench(LIMITS, TIMED)

    async def script(bench: ConnectionBench) -> None:
        stream = bench.stream
        data = wav(9.0)
        bench.send(data[:40_000])
        for _ in range(20):
            await asyncio.sleep(0)  # decoded, and the engine does not answer
        bench.clock.advance(0.9 * STALL_S)
        bench.send(data[40_000:80_000])
        for _ in range(20):
            await asyncio.sleep(0)
        bench.clock.advance(0.2 * STALL_S)
        stream._on_timer()
        assert bench.transport.closed is not None
        assert "no progress" in bench.transport.closed[1]

    bench.run(script)


def test_reading_paused_by_a_protocol_is_not_resumed_by_a_low_backlog() -> None:
    backpressure = Backpressure(30.0)
    assert backpressure.hold()
    assert not backpressure.falls(0.0, 0.0)
    assert backpressure.holding
    assert backpressure.release()
    assert not backpressure.holding


def test_reading_stops_for_seconds_or_for_bytes_and_resumes_when_both_are_low() -> None:
    backpressure = Backpressure(30.0)
    assert not backpressure.rises(10.0, HIGH_WATER)
    assert backpressure.rises(0.0, HIGH_WATER + 0.01)
    assert not backpressure.falls(0.0, LOW_WATER + 0.01)
    assert not backpressure.falls(5.1, 0.0)
    assert backpressure.falls(5.0, LOW_WATER)
    assert backpressure.rises(10.1, 0.0)


def test_reading_stays_paused_after_a_wait_if_audio_decoded_meanwhile_is_far_ahead() -> None:
    bench = ConnectionBench(LIMITS, LIVE)
    rate = bench.session.options.sample_rate

    async def script(bench: ConnectionBench) -> None:
        async def decoding() -> None:
            bench.stream.on_samples(speech(rate)[: rate // 2].repeat(25, axis=0)[: rate * 12], bench.clock())

        bench.stream._wait_for(decoding())
        assert bench.stream._waiting is not None
        await bench.stream._waiting
        assert bench.stream.backlog_s > HIGH_WATER * LIMITS.max_backlog_s
        assert not bench.transport.reading
        bench.answer()
        assert bench.transport.reading
        bench.send(b"")

    bench.run(script)
