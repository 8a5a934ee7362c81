"""A live stream with a fake transport and an engine that answers on demand: order, flow control, latencies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from server.recognition.events import StepTiming
from server.recognition.session_options import Limits
from server.recognition.steps import StepTag
from server.streaming.flow_control import LiveLimits
from tests.support.servers.recognizers.spelling import CONFIG, silence, spell
from tests.support.streams.transport_bench import ConnectionBench

QUERY = {"encoding": "linear16", "sample_rate": "16000", "step_results": "true"}
MAX_BACKLOG_S = 6.0  # reading stops above 2 s and resumes at 1 s
STEP_S = CONFIG.step_samples / CONFIG.sample_rate


class Bench(ConnectionBench):
    """One stream whose steps wait in `pushed` until `answer`."""

    def __init__(self, **query: str) -> None:
        limits = LiveLimits(60.0, 60.0, MAX_BACKLOG_S)
        super().__init__(Limits(max_backlog_s=MAX_BACKLOG_S), limits, **(QUERY | query))
        self.pushed: Any = self._work[0]

    def play(self, script: Callable[[], None]) -> None:
        """Run the script once the stream is open; the client disconnects at its end."""

        async def played(_: ConnectionBench) -> None:
            script()
            self.stream.on_gone()

        self.run(played)

    def answer(self, steps: int | None = None, took_s: Sequence[float] = (0.0,) * 4) -> None:
        """Answer the next steps, each after its queue wait, step, handover and decode."""
        for _ in range(len(self.pushed) if steps is None else steps):
            self.clock.advance(sum(took_s))
            arrived_s = self.pushed[0].tag.arrived_s
            self.timing = StepTiming(arrived_s, *took_s, self.clock(), 3)
            super().answer(1)


def test_messages_wait_in_order_while_the_audio_is_ahead_of_the_engine() -> None:
    bench = Bench()

    def script() -> None:
        for _ in range(3):
            bench.stream.on_message(silence(1.0).tobytes())
        assert not bench.transport.reading
        assert len(bench.pushed) == round(2.96 / STEP_S)
        before = len(bench.pushed)
        bench.stream.on_message('{"type":"Finalize"}')  # read together with the audio before
        bench.stream.on_message(spell("ab").tobytes())
        assert len(bench.pushed) == before, "neither is processed yet"
        bench.answer(before - 13)
        assert len(bench.pushed) == 13
        assert not bench.transport.reading
        bench.answer(1)  # the marker
        assert bench.transport.reading
        markers = [work.tag.marker.value for work in list(bench.pushed)[12:] if isinstance(work.tag, StepTag)]
        assert "finalize" in markers
        assert set(markers[markers.index("finalize") + 1 :]) == {"audio"}, "the audio comes after the flush"

    bench.play(script)


def test_messages_kept_while_reading_is_paused_may_pause_it_again() -> None:
    bench = Bench()

    def script() -> None:
        for _ in range(7):
            bench.stream.on_message(silence(1.0).tobytes())
        bench.answer(len(bench.pushed) - 12)
        assert not bench.transport.reading
        assert 2.0 < len(bench.pushed) * STEP_S <= 3.1
        while not bench.transport.reading:
            bench.answer(1)
        bench.answer(len(bench.pushed))
        assert bench.session.channels[0].settings.steps_answered == round(7.0 // STEP_S), (
            "every second of it was processed"
        )

    bench.play(script)


def test_kept_messages_are_dropped_when_the_stream_ends() -> None:
    bench = Bench()

    def script() -> None:
        for _ in range(4):
            bench.stream.on_message(silence(1.0).tobytes())
        bench.recognition.fail(ArithmeticError("step"))
        assert bench.transport.closed is not None
        assert bench.transport.closed[0] == 1011
        bench.stream.on_message(silence(1.0).tobytes())
        assert not bench.pushed
        assert bench.transport.reading, "else the client's own close would never be read"

    bench.play(script)


def test_the_parts_of_a_results_latency_add_up() -> None:
    bench = Bench(latency="true")
    took_s = (0.004, 0.003, 0.0002, 0.0008)

    def script() -> None:
        bench.stream.on_message(spell("a").tobytes())
        bench.transport.congested = True
        bench.answer(1, took_s)
        bench.clock.advance(0.5)  # the client does not read
        bench.transport.congested = False
        bench.stream.on_writable()
        bench.stream.on_message(spell("b").tobytes())
        bench.answer(1, took_s)

    bench.play(script)
    first, second = [frame["tutti"]["latency"] for frame in bench.frames]  # type: ignore[index]
    assert first == {
        "queue_ms": 4.0,
        "step_ms": 3.0,
        "handover_ms": 0.2,
        "decode_ms": 0.8,
        "write_ms": 0.0,
        "batch": 3,
    }
    assert second == {**first, "write_ms": 500.0}, "known only after the previous frame is written"
    whole_s, parts_s = bench.metrics.result_latency["interim"].total, 2 * sum(took_s) + bench.metrics.write.total
    assert abs(whole_s - parts_s) < 1e-6
