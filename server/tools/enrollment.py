"""Enrolling a voice: recordings in, one vector out. Refuses too little voice, and recordings with two voices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from model.speakers.known_voice import SAME_VOICE
from model.speakers.slot_model import SAMPLE_RATE, STEP_SAMPLES, SpeakerWeights
from model.speakers.step import HOP
from model.speakers.vectors import Vector, mean_of, similarity
from model.speakers.whole import speakers_of_recording
from server.tools.recordings import RecordingReader

HOP_S = HOP * STEP_SAMPLES / SAMPLE_RATE
"""Seconds of voice from a vector to the next."""
LEAST_S = 6.0
"""Seconds of voice of all recordings together: docs/speakers.md has how well fewer do."""


class NotEnrolled(Exception):
    """Recordings of which no voice can be enrolled; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Enrollment:
    """Vector of a voice (SIZE,), norm 1, the seconds of voice that it was made from, and the digest of the weights."""

    vector: Vector
    seconds: float
    weights: str


def enroll(files: Sequence[Path], read: RecordingReader) -> Enrollment:
    """Return the voice of recordings. Raises: NotEnrolled; AudioError; ModelError."""
    weights = SpeakerWeights.load()
    by_file = [_vectors(weights, read(file, SAMPLE_RATE)) for file in files]
    vectors = np.concatenate([recording.vectors for recording in by_file])
    seconds = round(HOP_S * len(vectors), 1)
    if seconds < LEAST_S:
        raise NotEnrolled(f"only {seconds:g} s of voice; at least {LEAST_S:g} s are needed: give more recordings")
    _check_one_voice(files, by_file)
    return Enrollment(mean_of(vectors), seconds, weights.digest)


@dataclass(frozen=True, slots=True)
class _Voiced:
    """Vectors of a recording (N, SIZE), and start and end of the audio of each (N, 2), in seconds."""

    vectors: Vector
    spans_s: NDArray[np.float64]


def _vectors(weights: SpeakerWeights, pcm: NDArray[np.int16]) -> _Voiced:
    model = weights.slots(capacity=1, largest=1)
    rows, spans = [], []
    for step in range(len(pcm) // STEP_SAMPLES):
        model.inputs[0] = pcm[step * STEP_SAMPLES : (step + 1) * STEP_SAMPLES]
        (row,) = model.run([0])
        if row[0]:
            rows.append(row[1:])
            end_s = (step + 1) * STEP_SAMPLES / SAMPLE_RATE
            spans.append((end_s - float(row[0]), end_s))
    size = model.run([]).shape[1] - 1
    return _Voiced(np.array(rows, np.float32).reshape(len(rows), size), np.array(spans, np.float64).reshape(-1, 2))


def _check_one_voice(files: Sequence[Path], by_file: Sequence[_Voiced]) -> None:
    """Raises: NotEnrolled if one file has two voices, or two files have different ones."""
    advice = "enroll one voice at a time, from recordings in which no one else speaks"
    voiced = [(file, one) for file, one in zip(files, by_file, strict=True) if len(one.vectors)]
    for file, one in voiced:
        labels = speakers_of_recording(one.vectors, one.spans_s)
        if labels.any():
            at_s = one.spans_s[int(labels.argmax())].mean()
            raise NotEnrolled(f"{file}: two voices, the second at {at_s:.1f} s; {advice}")
    vectors, spans_s = (
        np.concatenate(parts) for parts in zip(*((one.vectors, one.spans_s) for _, one in voiced), strict=True)
    )
    labels = speakers_of_recording(vectors, spans_s)
    ends = np.cumsum([len(one.vectors) for _, one in voiced])
    voices = [int(np.bincount(part).argmax()) for part in np.split(labels, ends[:-1])]
    first, mean = voiced[0][0], mean_of(voiced[0][1].vectors)
    for (file, one), voice in zip(voiced, voices, strict=True):
        if voice != voices[0] or similarity(mean, mean_of(one.vectors)) < SAME_VOICE:
            raise NotEnrolled(f"{file}: another voice than in {first}; {advice}")
