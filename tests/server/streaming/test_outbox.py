"""The writer and its outbox: order, bounds, latency of written results, and delays of their words."""

from __future__ import annotations

import pytest

from model.ctc.words import Word
from server.errors import Close
from server.operations.metrics import Metrics
from server.recognition.events import Final, FinalReason, Partial, StepTiming
from server.streaming.outbox import OUTBOX_FRAMES, FrameKind, OutFrame, WordDelays, Writer
from tests.support.servers.fakes import FakeClock
from tests.support.streams.fake_transport import FakeTransport

BYE = Close(1000, "bye", "completed")


class Bench:
    """A writer with its transport, clock and metrics."""

    def __init__(self) -> None:
        self.transport, self.clock, self.metrics = FakeTransport(), FakeClock(), Metrics(max_batch=8, max_streams=8)
        self.writer = Writer(self.transport, self.metrics, self.clock)

    def put(self, text: str, kind: FrameKind = FrameKind.FINAL) -> bool:
        return self.writer.put(OutFrame(text.encode(), kind))

    @property
    def written(self) -> str:
        return b" ".join(self.transport.written).decode()


def test_a_frame_is_written_at_once() -> None:
    bench = Bench()
    assert bench.put("one")
    assert bench.put("two")
    assert bench.written == "one two"
    assert bench.writer.waiting_since(bench.clock()) == bench.clock()


def test_frames_wait_in_order_for_a_slow_client_and_the_close_after_them() -> None:
    bench = Bench()
    bench.transport.congested = True
    began_s = bench.clock()
    bench.put("one")
    bench.clock.advance(1.0)
    bench.put("two")
    bench.writer.end(BYE)
    assert (bench.written, bench.transport.closed) == ("", None)
    assert bench.writer.waiting_since(bench.clock()) == began_s
    bench.transport.congested = False
    assert bench.put("three"), "after the others, although the transport is free"
    bench.writer.flush()
    assert bench.written == "one two three"
    assert bench.transport.closed == (1000, "bye")
    assert bench.writer.waiting_since(bench.clock()) == bench.clock()


def test_the_write_timeout_restarts_when_the_client_reads_a_frame() -> None:
    bench = Bench()
    bench.transport.congested = True
    for text in ("one", "two", "three"):
        bench.put(text)
    bench.clock.advance(1.0)

    def takes_one(payload: bytes) -> None:
        bench.transport.written.append(payload)
        bench.transport.congested = True

    bench.transport.write = takes_one  # type: ignore[method-assign]
    bench.transport.congested = False
    bench.writer.flush()
    assert bench.written == "one"
    assert bench.writer.waiting_since(bench.clock() + 9.0) == bench.clock()


def test_a_full_outbox_drops_its_interims_first_and_then_refuses_frames() -> None:
    bench = Bench()
    bench.transport.congested = True
    assert all(bench.put(f"i{n}", FrameKind.INTERIM) for n in range(OUTBOX_FRAMES - 1))
    assert bench.put("final")
    assert bench.put("last")
    assert bench.writer.facts()["interims_dropped"] == OUTBOX_FRAMES - 1
    assert all(bench.put("more") for _ in range(OUTBOX_FRAMES - 2))
    assert not bench.put("too much")
    bench.transport.congested = False
    bench.writer.flush()
    assert bench.written.startswith("final last more")


def test_latency_is_measured_when_the_result_is_written() -> None:
    bench = Bench()
    bench.transport.congested = True
    now = bench.clock()
    timing = StepTiming(now - 0.05, 0.01, 0.02, 0.005, 0.015, now, 4)
    bench.writer.put(OutFrame(b"text", FrameKind.INTERIM, timing))
    bench.clock.advance(0.25)
    bench.transport.congested = False
    bench.writer.flush()
    assert bench.writer.write_s == 0.25
    parts = timing.queue_wait_s + timing.step_s + timing.handover_s + timing.decode_s + bench.metrics.write.total
    assert abs(bench.metrics.result_latency["interim"].total - parts) < 1e-6
    assert abs(bench.writer.worst_latency_s - 0.3) < 1e-6


NOW_S = 8_675_309.25
TIMING = StepTiming(NOW_S - 0.05, 0.01, 0.01, 0.01, 0.01, NOW_S - 0.01, 1)  # the step's audio arrived 50 ms ago


def word(text: str, end_s: float) -> Word:
    return Word(text, end_s - 0.2, end_s, 0.9)


ONE, TWO = word("one", 1.0), word("two", 1.4)


def counted(metrics: Metrics) -> list[tuple[int, float]]:
    spreads = (*(metrics.word_delay[kind] for kind in ("shown", "stable", "final")), metrics.time_to_final)
    return [(spread.count, pytest.approx(round(spread.total, 6))) for spread in spreads]


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(max_batch=1, max_streams=1)


def test_each_word_counts_once_from_the_arrival_of_its_end(metrics: Metrics) -> None:
    delays = WordDelays(metrics, lambda: NOW_S)
    delays.observe(Partial(0, 0.0, 1.4, (ONE,), 0), TIMING)  # 0.4 s of audio after it, and 50 ms
    delays.observe(Partial(0, 0.0, 1.5, (ONE,), 0), TIMING)  # shown before
    delays.observe(Partial(0, 0.0, 1.8, (ONE, TWO), 1), TIMING)
    assert counted(metrics) == [(2, 0.45 + 0.45), (1, 0.85), (0, 0.0), (0, 0.0)]
    delays.observe(Final(0, 0.0, 2.0, (ONE, TWO), FinalReason.ENDPOINT), TIMING)
    assert counted(metrics) == [(2, 0.9), (2, 0.85 + 0.65), (2, 1.05 + 0.65), (1, 0.65)]


def test_the_next_segment_and_another_channel_count_anew(metrics: Metrics) -> None:
    delays = WordDelays(metrics, lambda: NOW_S)
    delays.observe(Final(0, 0.0, 1.0, (ONE,), FinalReason.FINALIZE), TIMING)
    delays.observe(Final(0, 1.0, 0.0, (), FinalReason.FINALIZE), TIMING)  # empty: nothing to count
    delays.observe(Partial(0, 1.0, 0.8, (TWO,), 0), TIMING)
    delays.observe(Partial(1, 0.0, 1.8, (TWO,), 0), TIMING)
    assert [count for count, _ in counted(metrics)] == [3, 1, 1, 1]
