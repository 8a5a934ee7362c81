"""Forks: their text is that of a flush, the stream does not notice them, and none is needed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from model.ctc.greedy import GreedyDecoder
from model.ctc.words import Decoder
from model.int8.model import Int8Model
from model.recordings import read_pcm
from server.audio.pcm import PCM
from tests.support.audio.speech import samples
from tests.support.networks.quantized_networks import random_quantized
from tests.support.servers.spelling import SpellingModel, spell, spelling_decoder
from tests.support.servers.wavering import WaveringDecoder
from tests.support.streams.forked_streams import ForkedStreams, Stream

FORKS = int(os.environ.get("TUTTI_TEST_FORKS", "0"))
"""Number of forks in the long test; by default it is short."""


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
        np.testing.assert_array_equal(outputs, reference.outputs[-len(outputs) :])
    assert forked.most_used <= 64, "forks take no slot of a stream"
    assert not forked.recognizer._forks.running
    assert not forked.recognizer._routes
    return len(flushed)


def assert_equal(stream: Stream, other: Stream) -> None:
    """Streams that were cut off may have got more or fewer of their results."""
    if stream.by_flush:
        assert stream.own == other.own
        assert len(stream.outputs) == len(other.outputs)
    for mine, others in zip(stream.outputs, other.outputs, strict=False):
        np.testing.assert_array_equal(mine, others)
    for event, others_event in zip(stream.own, other.own, strict=False):
        assert event == others_event


def texts(count: int, seed: int = 0) -> list[PCM]:
    dice = np.random.default_rng(seed)
    return [spell("".join(dice.choice(list("abcde  "), dice.integers(4, 40)))) for _ in range(count)]


def test_streams_do_not_notice_forks_whose_text_is_that_of_a_flush() -> None:
    assert check(SpellingModel(), spelling_decoder(), texts(90), forks=200) > 100


def test_where_no_slot_is_spare_forks_are_refused_and_streams_go_on() -> None:
    assert check(SpellingModel(), spelling_decoder(), texts(90), forks=200, slots=1) > 10
    assert check(SpellingModel(), spelling_decoder(), texts(30), forks=50, slots=0) == 0


def test_an_engine_that_is_lost_changes_no_stream_and_no_fork() -> None:
    assert check(SpellingModel(), spelling_decoder(), texts(60), forks=150, losses=0.05) > 80


def test_no_decoder_state_of_a_fork_is_left() -> None:
    decoder = WaveringDecoder()
    assert check(SpellingModel(), decoder, texts(30), forks=60)
    assert not decoder.open


def test_forks_of_a_network_are_flushes_to_the_bit_of_its_log_probabilities() -> None:
    """Random weights, so that every step writes something; the recordings are real."""
    model = Int8Model(random_quantized(), "random")
    decoder = GreedyDecoder(model.config.vocabulary, model.config.frame_s)
    audio = [read_pcm(sample.audio) for sample in samples()]
    assert check(model, decoder, [pcm[start : start + 32_000] for pcm in audio for start in (0, 9_000)], forks=60)
