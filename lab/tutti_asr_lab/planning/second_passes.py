"""Processor time of second passes over the segments of a recording, in this process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from loadtest.generator.settings import SAMPLE_RATE
from model.ctc.interface import Decoder
from model.decoder import SecondPassName
from model.facts import AcousticModel
from server.recognition.messages import Samples, StepDecoded, Waited
from server.recognition.session import Session
from server.recognition.session_options import Finals, Limits, SessionOptions
from server.recognition.steps import StepTag, Work
from tutti_asr_lab.simulation.calibration import SecondPasses

ROUNDS = 3  # of the audio, after one whose first segment begins with the stream
OPTIONS = SessionOptions(sample_rate=SAMPLE_RATE, partials=True, every_step=True)


class _Stream:
    """A stream with one kind of finals, and the processor time of its steps and, by step, of its second passes."""

    def __init__(self, model: AcousticModel, decoder: Decoder, finals: Finals) -> None:
        limits = Limits().with_accurate_finals() if finals == "accurate" else Limits()
        self.session, self.decoder = Session(OPTIONS, model.config, decoder, limits), decoder
        self.loop_s: list[float] = []
        self.passes_s: dict[int, list[float]] = {}

    def take(self, work: Work, outputs: NDArray[np.float32], step: int) -> None:
        """Decode a step, and run the second pass if it ends a segment."""
        assert isinstance(work.tag, StepTag)
        began_s, pending = time.thread_time(), self.session.pending
        self.decoder.advance([self.session.channels[0].segment.state], outputs)
        self.session.take(StepDecoded(0, work.tag))
        self.loop_s.append(time.thread_time() - began_s)
        if pending is None:
            return
        for final in pending.take_new():
            began_s = time.thread_time()
            words = final.decode()
            self.passes_s.setdefault(step, []).append(time.thread_time() - began_s)
            for events, _ in pending.resolve(final, words):
                self.session.take(Waited(events))


def measure_passes(
    model: AcousticModel, decoder: Decoder, passes: Mapping[SecondPassName, Decoder], audio: Sequence[bytes]
) -> dict[str, SecondPasses]:
    """Return the second passes over the segments of `audio`, which is repeated, by finals.

    Streams with each kind of finals, and one without a second pass, take the same outputs in turn.
    """
    fast, slots = _Stream(model, decoder, "fast"), model.slots(capacity=1, largest=1)
    streams = {finals: _Stream(model, one, finals) for finals, one in passes.items()}
    in_turn = [fast, *streams.values()]
    for number in range(len(audio) * (ROUNDS + 1)):
        samples = Samples(np.frombuffer(audio[number % len(audio)], np.int16)[:, None], 0.0)
        work = [stream.session.take(samples)[0] for stream in in_turn]
        slots.inputs[0] = work[0].pcm
        outputs = slots.run([0])
        for stream in in_turn:
            stream.take(work[0], outputs, number % len(audio))
        in_turn.append(in_turn.pop(0))  # the first one finds the caches in another state
    measured: dict[str, SecondPasses] = {}
    for finals, stream in streams.items():
        steps, loop_s = tuple(sorted(stream.passes_s)), statistics.fmean(stream.loop_s) - statistics.fmean(fast.loop_s)
        seconds = tuple([statistics.median(stream.passes_s[step]) for step in steps])
        measured[finals] = SecondPasses(len(audio), steps, seconds, loop_s)
    return measured
