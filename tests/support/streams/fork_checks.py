"""Forks at random steps of random streams, compared with streams that never fork and with flushes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from model.ctc.interface import Decoder
from server.audio.pcm import PCM
from tests.support.streams.forked_streams import ForkedStreams, Stream


def check(
    model: Any, decoder: Decoder, recordings: Sequence[PCM], forks: int, *, slots: int = 16, losses: float = 0.0
) -> int:
    """Fork these streams at random steps; compare each stream with one that never forked, and each fork with a flush.

    Returns: the number of forks that ran.
    """
    dice, size, lead = np.random.default_rng(forks), model.config.step_samples, model.config.lead_samples
    streams = [Stream(audio, set(), by_flush=bool(dice.random() < 0.5)) for audio in recordings]
    for _ in range(forks):
        stream = streams[dice.integers(len(streams))]
        stream.places.add(int(dice.integers(1, (len(stream.audio) + lead) // size + 1)))
    forked = ForkedStreams(model, decoder, slots=slots, losses=losses)
    forked.run(streams, seed=1)
    assert not losses or forked.engines.engine.lost
    alone = [Stream(stream.audio, set(), stream.by_flush) for stream in streams]
    ForkedStreams(model, decoder).run(alone, seed=2)
    flushed = [
        (stream, place, Stream(stream.audio[: round(place * model.config.sample_rate)], set(), by_flush=True))
        for stream in streams
        for place, words in stream.forks.items()
        if words is not None
    ]
    ForkedStreams(model, decoder).run([reference for _, _, reference in flushed], seed=3)
    for stream, other in zip(streams, alone, strict=True):
        assert_equal(stream, other)
    for stream, place, reference in flushed:
        assert stream.forks[place] == reference.last_words
        outputs = stream.forked[place]
        assert outputs == reference.outputs[-len(outputs) :]
    assert forked.most_used <= 64, "forks take no slot of a stream"
    assert not forked.recognizer._forks.running
    assert not forked.recognizer._routes
    return len(flushed)


def assert_equal(stream: Stream, other: Stream) -> None:
    """Streams that were cut off may have got more or fewer of their results."""
    if stream.by_flush:
        assert stream.own == other.own
        assert len(stream.outputs) == len(other.outputs)
    count = min(len(stream.outputs), len(other.outputs))
    assert stream.outputs[:count] == other.outputs[:count]
    for event, others_event in zip(stream.own, other.own, strict=False):
        assert event == others_event
