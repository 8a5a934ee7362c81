"""Recordings as an acoustic model hears them: its outputs are computed once, and decoded as often as one likes.

A whole recording is one segment here. A server cuts its text at pauses, so `tutti evaluate` may differ from this by
some words in a thousand.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np

from model.acoustic import OwnModel, log_probs_of
from model.config import TAIL_FRAMES
from model.ctc.kept_frames import take_mean
from model.ctc.words import Decoder, LogProbs, joined
from model.evaluation.scoring import Score, by_source
from model.recordings import Utterance, read_pcm


@dataclass(frozen=True, slots=True)
class Heard:
    """A recording and the acoustic model's output for it: log-probs (T, V)."""

    utterance: Utterance
    log_probs: LogProbs


def hear(model: OwnModel, utterances: Sequence[Utterance]) -> list[Heard]:
    """Run the acoustic model over whole recordings. Raises: AudioError."""
    config = model.config
    recordings = [read_pcm(u.audio, config.sample_rate) for u in utterances]
    frames = [-(-len(pcm) // config.frame_samples) + TAIL_FRAMES for pcm in recordings]
    samples = [(count + config.delay_frames) * config.frame_samples for count in frames]
    log_probs = log_probs_of(
        model, [np.pad(pcm, (0, size - len(pcm))) for pcm, size in zip(recordings, samples, strict=True)]
    )
    return [
        Heard(utterance, rows[config.delay_frames :][:count])
        for utterance, rows, count in zip(utterances, log_probs, frames, strict=True)
    ]


def hear_both(model: OwnModel, other: OwnModel, utterances: Sequence[Utterance]) -> list[Heard]:
    """The same with the mean of both models' probabilities, as segments are that are read again. Raises: AudioError."""
    heard = hear(model, utterances)
    for item, second in zip(heard, hear(other, utterances), strict=True):
        take_mean(item.log_probs, second.log_probs)
    return heard


def text_of(decoder: Decoder, item: Heard) -> str:
    """Decode one recording, from start to end."""
    state = decoder.start(0)
    decoder.advance([state], item.log_probs[None])
    return joined(word.text for word in decoder.take(state))


def decode(decoder: Decoder, heard: Sequence[Heard], executor: Executor) -> dict[str, Score]:
    """Score the decoder by source; compiled decoding releases the interpreter's lock, so threads share the work."""

    def row(item: Heard) -> tuple[str, str, str]:
        return item.utterance.source, item.utterance.text, text_of(decoder, item)

    longest_first = sorted(heard, key=lambda item: -len(item.log_probs))
    return by_source(executor.map(row, longest_first))
