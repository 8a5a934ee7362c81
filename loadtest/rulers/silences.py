"""Silences of recordings by silero-vad: holds inside a turn, and its end. They do not depend on any recognizer.

Two seconds of each recording's own quietest 200 ms are put after it, so that its end is as quiet as its pauses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from loadtest.rulers.turn_policies import HOLD_S, Span
from model.evaluation.parts import parts_of
from model.recordings import PCM, Utterance, read_pcm
from model.vad import step as vad
from model.vad.silero import SileroVad, VadSlots

RATE = SileroVad.sample_rate
WINDOW = vad.WINDOW
QUIET = RATE // 5  # samples of the quietest part
QUIETS = 10  # times that it is put after the recording
ABOVE, BELOW = 0.5, 0.35  # probabilities at which speech begins and ends
SHORTEST = 3  # windows of speech; less is no speech
SHORTEST_S = 0.1  # of silence that counts
WITHOUT_ENDS = ("librispeech",)  # sources whose utterances end inside sentences, so those are no ends


@dataclass(frozen=True, slots=True)
class Turn:
    """One recording as a turn: its audio with quiet after it, and its silences, the last of which is the end.

    `silences` are (start, length) in seconds, of `SHORTEST_S` and more; the length of the last one is None.
    """

    utterance: Utterance
    part: str
    pcm: PCM
    silences: tuple[tuple[float, float | None], ...]

    def spans(self) -> Iterator[Span]:
        """Yield its holds and its end."""
        for start_s, length_s in self.silences:
            if length_s is None and self.utterance.source.startswith(WITHOUT_ENDS):
                continue
            if length_s is None or length_s >= HOLD_S:
                yield Span(self.part, start_s, length_s)


class Listener:
    """Finds the silences of recordings, one after another."""

    def __init__(self) -> None:
        """Raises: ModelError."""
        self._vad = SileroVad.load().slots(capacity=1, largest=1)

    def silences(self, pcm: PCM) -> tuple[tuple[float, float | None], ...]:
        """Return the silences of (S,) int16, as `Turn.silences`; none without speech."""
        self._vad.reset(0)
        spoken = speech([_step(self._vad, window) for window in _windows(pcm)])
        return silences_of(spoken) if spoken else ()


def turns_of(utterances: Sequence[Utterance]) -> list[Turn]:
    """Read recordings and find their silences; those without speech are left out. Raises: AudioError, ModelError."""
    listener, turns = Listener(), list[Turn]()
    for utterance, part in zip(utterances, parts_of(utterances), strict=True):
        pcm = with_quiet(read_pcm(utterance.audio, RATE))
        silences = listener.silences(pcm)
        if silences:
            turns.append(Turn(utterance, part, pcm, silences))
    return turns


def with_quiet(pcm: PCM) -> PCM:
    """Return a recording, (S,) int16, and two seconds of its quietest part, played forward and backward in turn."""
    if len(pcm) < QUIET:
        return np.concatenate([pcm, np.zeros(QUIETS * QUIET, np.int16)])
    energy = np.concatenate([[0.0], np.cumsum(np.square(pcm, dtype=np.float64))])
    starts = np.arange(0, len(pcm) - QUIET + 1, QUIET // 4)
    start = int(starts[np.argmin(energy[starts + QUIET] - energy[starts])])
    quiet = pcm[start : start + QUIET]
    return np.concatenate([pcm, *(quiet[:: 1 - 2 * (number % 2)] for number in range(QUIETS))])


def speech(probabilities: Sequence[float]) -> list[tuple[int, int]]:
    """Return windows of speech, [start, end), from the probability of speech in each window."""
    stretches, start = list[tuple[int, int]](), None
    for number, probability in enumerate(probabilities):
        if start is None and probability > ABOVE:
            start = number
        elif start is not None and probability < BELOW:
            stretches.append((start, number))
            start = None
    if start is not None:
        stretches.append((start, len(probabilities)))
    return [(begin, end) for begin, end in stretches if end - begin >= SHORTEST]


def silences_of(spoken: Sequence[tuple[int, int]]) -> tuple[tuple[float, float | None], ...]:
    """Return the silences after each stretch of speech, as `Turn.silences`."""
    second = WINDOW / RATE
    after = [*(begin for begin, _ in spoken[1:]), None]
    lengths = [None if begin is None else (begin - end) * second for (_, end), begin in zip(spoken, after, strict=True)]
    starts = [end * second for _, end in spoken]
    return tuple(
        (s, length) for s, length in zip(starts, lengths, strict=True) if length is None or length >= SHORTEST_S
    )


def _windows(pcm: PCM) -> list[PCM]:
    return [pcm[first : first + WINDOW] for first in range(0, len(pcm) - WINDOW + 1, WINDOW)]


def _step(slots: VadSlots, window: PCM) -> float:
    slots.inputs[0, :WINDOW], slots.inputs[0, -1] = window, 1
    return float(slots.run([0])[0, 0])
