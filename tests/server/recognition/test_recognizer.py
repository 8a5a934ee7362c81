"""Decoding of a batch: its measured time, and failures, which end the streams of that batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from batching.events import BatchDone
from model.ctc.bias import NO_BIAS, Bias
from server.operations.metrics import Metrics
from server.recognition.decoding.batch_decoder import BatchDecoder, Route
from server.recognition.decoding.second_pass import SecondPass
from server.recognition.events import Event, Partial, StepTiming, StreamBroken
from server.recognition.session import Session
from server.recognition.session_options import Limits, SessionOptions
from server.recognition.steps import Marker, StepTag
from tests.support.servers.fakes import FakeClock
from tests.support.servers.recognizers.spelling import CONFIG
from tests.support.servers.recognizers.wavering import WaveringDecoder, WaveringState
from tests.support.streams.engine_bench import SilentEngine, session_on

FRAMES = CONFIG.step_samples // CONFIG.frame_samples


class _SlowDecoder(WaveringDecoder):
    """Takes a second for each `advance` and `words`; fails on the state `fails_on`. The first frame counts."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self._clock = clock
        self.fails_on: Any = None
        self.read: list[Any] = []  # states, in the order of the calls

    def start(self, skip_frames: int, bias: Bias = NO_BIAS) -> WaveringState:
        del skip_frames
        return super().start(0, bias)

    def advance(self, states: Any, log_probs: Any) -> None:
        assert len({id(state) for state in states}) == len(states) == len(log_probs)
        self._clock.advance(1.0)
        super().advance(states, log_probs)

    def words(self, state: Any) -> Any:
        self._clock.advance(1.0)
        self.read.append(state)
        if state is self.fails_on:
            raise ArithmeticError("words")
        return super().words(state)


class _Sink:
    def __init__(self) -> None:
        self.events: list[Event] = []
        self.timings: list[StepTiming | None] = []

    def on_events(self, events: Sequence[Event], timing: StepTiming | None) -> None:
        self.events += events
        self.timings.append(timing)


class _Bench:
    """Streams with `every_step`, and one batch that answers each of them."""

    def __init__(self, streams: int) -> None:
        self.clock = FakeClock()
        self.decoder = _SlowDecoder(self.clock)
        self.metrics = Metrics(max_batch=8, max_streams=8).of_model("spelling")
        self.decoding = BatchDecoder(self.metrics, self.clock, SecondPass(self.clock))
        self.sinks = [_Sink() for _ in range(streams)]
        self.routes = dict(enumerate(map(self._route, self.sinks)))

    def _route(self, sink: _Sink) -> Route:
        options = SessionOptions(CONFIG.sample_rate, every_step=True)
        session = Session(options, CONFIG, self.decoder, Limits())
        return Route(session_on(SilentEngine(), session, sink), session.channels[0])

    def answer(self, steps: int = 1) -> None:
        count = len(self.routes) * steps
        places = [step for _ in self.routes for step in range(1, steps + 1)]
        for route in self.routes.values():
            for _ in range(steps):
                route.channel.sent(np.zeros(CONFIG.step_samples, np.int16), Marker.AUDIO)
        outputs = np.zeros((count, FRAMES, len(CONFIG.vocabulary)), np.float32)
        outputs[:, :, CONFIG.vocabulary.index("a")] = 1.0
        self.decoding.take_steps(
            BatchDone(
                streams=tuple(stream for stream in self.routes for _ in range(steps)),
                tags=tuple(StepTag(CONFIG.step_samples * n, 0.08 * n, Marker.AUDIO, 0.0) for n in places),
                outputs=outputs,
                queue_wait_s=(0.0,) * count,
                started_s=0.0,
                step_s=0.0,
                queued=0,
                steps=steps,
            ),
            self.routes,
        )

    def measured_s(self) -> tuple[float, float]:
        """How often decoding was measured, and the sum."""
        return self.metrics.decode.count, self.metrics.decode.total


def test_decode_time_covers_search_and_words_of_all_rows() -> None:
    bench = _Bench(streams=3)
    bench.answer()
    assert bench.measured_s() == (1, pytest.approx(1.0 + 3 * 1.0))
    for sink in bench.sinks:
        (timing,) = sink.timings
        assert timing is not None
        assert timing.decode_s == pytest.approx(4.0)


def test_the_steps_of_a_chunk_are_decoded_in_order_and_those_of_all_streams_together() -> None:
    bench = _Bench(streams=3)
    bench.answer(steps=4)
    assert bench.measured_s() == (4, pytest.approx(4 * (1.0 + 3 * 1.0)))
    for sink in bench.sinks:
        assert len(sink.timings) == 4
        ends_s = [event.start_s + event.duration_s for event in sink.events if isinstance(event, Partial)]
        assert ends_s == pytest.approx([n * CONFIG.step_samples / CONFIG.sample_rate for n in range(1, 5)])


def test_words_are_read_again_only_if_the_decoder_has_changed_them() -> None:
    bench = _Bench(streams=1)
    bench.answer(steps=2)
    state: Any = bench.routes[0].channel.segment.state
    read = len(bench.decoder.read)
    state.revision -= FRAMES  # as it was before the step that comes
    bench.answer()
    assert len(bench.decoder.read) == read
    bench.answer()
    assert len(bench.decoder.read) == read + 1


def test_failure_to_read_words_ends_every_stream_of_the_batch() -> None:
    """The rows after the failing one have no events either, so their streams cannot continue."""
    bench = _Bench(streams=3)
    bench.decoder.fails_on = bench.routes[1].channel.segment.state
    bench.answer()
    assert [[type(event) for event in sink.events] for sink in bench.sinks] == [[StreamBroken]] * 3
    assert bench.decoder.open == set()
    assert bench.metrics.errors.labels("decode")._value.get() == 1
