"""Questions to a turn model about the pauses of one channel, and the steps at which the answers take effect. Pure."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import numpy as np

from model.turn_ends.whisper_features import SAMPLES
from server.audio.pcm import PCM

ASK_S = (0.2, 0.6)  # silence after which the model is asked: once per pause, and once more if the pause continues
ANSWER_STEPS = 2  # from the step of a question to the step after which its answer counts: 160 ms
ROUNDING = 1e-6

Done = Callable[[float], bool]
Ask = Callable[[PCM, Done], None]
"""Asks the turn model about the end of these samples; the function gets the answer later, or is never called.

The function returns whether the answer is in time.
"""


class Answered(Protocol):
    """Interface to a channel's `SettingsByStep`: the number of its steps, and the answers that count after them."""

    steps_sent: int

    def take_answer(self, answer: float | None, after_step: int) -> bool:
        """Apply an answer after a step; return whether it is in time."""


class LastAudio:
    """The last 8 s of a channel's audio at 16 kHz."""

    def __init__(self) -> None:
        self._buffer = np.zeros(2 * SAMPLES, np.int16)
        self._filled = 0

    @property
    def samples(self) -> PCM:
        """A copy, (S,) int16; less than 8 s at the beginning."""
        return self._buffer[max(0, self._filled - SAMPLES) : self._filled].copy()

    def add(self, step: PCM) -> None:
        """Append a step, (S,); the buffer is moved once in 8 s."""
        if self._filled + len(step) > len(self._buffer):
            kept = self.samples
            self._buffer[: len(kept)] = kept
            self._filled = len(kept)
        self._buffer[self._filled : self._filled + len(step)] = step
        self._filled += len(step)


class PauseQuestions:
    """Asks the turn model about the pauses of one channel.

    An answer counts after a fixed number of steps, so that events depend on the audio alone; one that arrives later is
    dropped.
    """

    def __init__(self, steps: Answered, ask: Ask) -> None:
        self._steps, self._ask = steps, ask
        self._audio = LastAudio()
        self._pause = 0  # number of the present pause
        self._asked = 0  # questions in the present pause
        self._silence_s = 0.0

    def sent(self, step: PCM, silence_s: float) -> None:
        """Take a step of audio, which the channel has sent to the engine, and the silence after it."""
        self._audio.add(step)
        before_s, self._silence_s = self._silence_s, silence_s
        number = self._steps.steps_sent
        if self._silence_s < before_s and self._asked:
            self._pause, self._asked = self._pause + 1, 0
            self._steps.take_answer(None, number)
        if self._asked < len(ASK_S) and self._silence_s >= ASK_S[self._asked] - ROUNDING:
            self._asked += 1
            self._ask(self._audio.samples, partial(self._answered, self._pause, number + ANSWER_STEPS))

    def _answered(self, pause: int, after_step: int, answer: float) -> bool:
        return pause == self._pause and self._steps.take_answer(answer, after_step)
