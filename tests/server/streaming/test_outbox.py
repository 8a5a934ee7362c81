"""Frames go out in order: at once while the client takes them, later when it does not, and not without end."""

from __future__ import annotations

from fake_transport import FakeWire
from fakes import FakeClock

from server.errors import Close
from server.operations.metrics import Metrics
from server.recognition.events import StepTiming
from server.streaming.outbox import OUTBOX_FRAMES, FrameKind, OutFrame, Writer

BYE = Close(1000, "bye", "completed")


class Bench:
    """A writer and everything that it touches."""

    def __init__(self) -> None:
        self.wire, self.clock, self.metrics = FakeWire(), FakeClock(), Metrics(max_batch=8, max_streams=8)
        self.writer = Writer(self.wire, self.metrics, self.clock)

    def put(self, text: str, kind: FrameKind = FrameKind.FINAL) -> bool:
        return self.writer.put(OutFrame(text.encode(), kind))

    @property
    def written(self) -> str:
        return b" ".join(self.wire.written).decode()


def test_a_frame_is_written_at_once() -> None:
    bench = Bench()
    assert bench.put("one")
    assert bench.put("two")
    assert bench.written == "one two"
    assert bench.writer.waiting_since(bench.clock()) == bench.clock()


def test_what_the_client_does_not_take_waits_in_order_and_the_close_behind_it() -> None:
    bench = Bench()
    bench.wire.congested = True
    began_s = bench.clock()
    bench.put("one")
    bench.clock.advance(1.0)
    bench.put("two")
    bench.writer.end(BYE)
    assert (bench.written, bench.wire.closed) == ("", None)
    assert bench.writer.waiting_since(bench.clock()) == began_s
    bench.wire.congested = False
    assert bench.put("three"), "behind the others, although the wire is free"
    bench.writer.flush()
    assert bench.written == "one two three"
    assert bench.wire.closed == (1000, "bye")
    assert bench.writer.waiting_since(bench.clock()) == bench.clock()


def test_a_client_that_takes_a_little_is_given_a_new_time_limit_for_the_rest() -> None:
    bench = Bench()
    bench.wire.congested = True
    for text in ("one", "two", "three"):
        bench.put(text)
    bench.clock.advance(1.0)

    def takes_one(payload: bytes) -> None:
        bench.wire.written.append(payload)
        bench.wire.congested = True

    bench.wire.write = takes_one  # type: ignore[method-assign]
    bench.wire.congested = False
    bench.writer.flush()
    assert bench.written == "one"
    assert bench.writer.waiting_since(bench.clock() + 9.0) == bench.clock()


def test_interims_go_first_when_there_is_no_room_and_then_there_is_none() -> None:
    bench = Bench()
    bench.wire.congested = True
    assert all(bench.put(f"i{n}", FrameKind.INTERIM) for n in range(OUTBOX_FRAMES - 1))
    assert bench.put("final")
    assert bench.put("last")
    assert bench.writer.dropped == OUTBOX_FRAMES - 1
    assert all(bench.put("more") for _ in range(OUTBOX_FRAMES - 2))
    assert not bench.put("too much")
    bench.wire.congested = False
    bench.writer.flush()
    assert bench.written.startswith("final last more")


def test_a_results_latency_and_its_last_part_are_measured_where_it_is_written() -> None:
    bench = Bench()
    bench.wire.congested = True
    now = bench.clock()
    timing = StepTiming(now - 0.05, 0.01, 0.02, 0.005, 0.015, now, 4)
    bench.writer.put(OutFrame(b"text", FrameKind.INTERIM, timing))
    bench.clock.advance(0.25)
    bench.wire.congested = False
    bench.writer.flush()
    assert bench.writer.write_s == 0.25
    parts = timing.queue_wait_s + timing.step_s + timing.handover_s + timing.decode_s + bench.metrics.write.total
    assert abs(bench.metrics.result_latency["interim"].total - parts) < 1e-6
    assert abs(bench.writer.worst_latency_s - 0.3) < 1e-6
