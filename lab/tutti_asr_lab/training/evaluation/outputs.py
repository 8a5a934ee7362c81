"""Outputs of an acoustic model for whole recordings: computed once, then decoded any number of times.

A whole recording is one segment here. The server splits the text into segments at pauses, so results of
`tutti evaluate` may differ by a few words per thousand.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np

from model.acoustic import log_probs_of
from model.config import TAIL_FRAMES
from model.ctc.interface import Decoder, LogProbs
from model.ctc.words import joined
from model.evaluation.scoring import Score, by_source
from model.facts import AcousticModel
from model.recordings import Utterance, read_pcm


@dataclass(frozen=True, slots=True)
class RecordingOutput:
    """Recording and the acoustic model's output for it: log-probabilities (T, V)."""

    utterance: Utterance
    log_probs: LogProbs


def outputs_of(model: AcousticModel, utterances: Sequence[Utterance]) -> list[RecordingOutput]:
    """Run the acoustic model over whole recordings. Raises: AudioError."""
    config = model.facts.own_config
    recordings = [read_pcm(u.audio, config.sample_rate) for u in utterances]
    frames = [-(-len(pcm) // config.frame_samples) + TAIL_FRAMES for pcm in recordings]
    samples = [(count + config.delay_frames) * config.frame_samples for count in frames]
    log_probs = log_probs_of(
        model, [np.pad(pcm, (0, size - len(pcm))) for pcm, size in zip(recordings, samples, strict=True)]
    )
    return [
        RecordingOutput(utterance, rows[config.delay_frames :][:count])
        for utterance, rows, count in zip(utterances, log_probs, frames, strict=True)
    ]


def decode(decoder: Decoder, outputs: Sequence[RecordingOutput], executor: Executor) -> dict[str, Score]:
    """Scores of a decoder by source. Threads run in parallel, because compiled decoding releases the GIL."""

    def row(item: RecordingOutput) -> tuple[str, str, str]:
        state = decoder.start(0)
        decoder.advance([state], item.log_probs[None])  # (1, T, V)
        text = joined(word.text for word in decoder.take(state))
        return item.utterance.source, item.utterance.text, text

    longest_first = sorted(outputs, key=lambda item: -len(item.log_probs))
    return by_source(executor.map(row, longest_first))
