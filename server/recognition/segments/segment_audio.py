"""Stores the audio of a channel's open segment, step by step, for a second pass by another network. Pure."""

from __future__ import annotations

from collections import deque
from copy import copy
from itertools import islice

import numpy as np

from model.ctc.interface import FrameAudio
from model.ctc.two_pass import CONTEXT_S, KEPT_S
from model.description import ModelDescription
from server.audio.pcm import PCM


class SegmentAudio:
    """The steps of a segment and some before it, numbered from the first step of the decoder state."""

    def __init__(self, config: ModelDescription) -> None:
        step_s = config.step_samples / config.sample_rate
        self._frames = round(step_s / config.frame_s)  # frames per step
        self._before, self._most = round(CONTEXT_S / step_s), round((KEPT_S + CONTEXT_S) / step_s)
        self._steps: deque[PCM] = deque()
        self._first = 0  # number of the oldest step that is kept
        self._answered = 0  # steps decoded since the decoder state started

    def add(self, step: PCM) -> None:
        """Take a step that is sent to the engine."""
        self._steps.append(step)

    def answered(self) -> None:
        """Record that the next step was decoded."""
        self._answered += 1
        self._drop(self._answered - self._most)

    def decoded(self) -> FrameAudio:
        """Return the kept part of the decoded audio."""
        steps = list(islice(self._steps, self._answered - self._first))
        pcm = np.concatenate(steps) if steps else np.zeros(0, np.int16)
        return FrameAudio(pcm, self._first * self._frames)

    def copy(self) -> SegmentAudio:
        """Return an independent copy of what was decoded; steps that are not answered are not in it."""
        twin = copy(self)
        twin._steps = deque(islice(self._steps, self._answered - self._first))
        return twin

    def taken(self) -> None:
        """Drop audio after all words so far were sent, except the context of the next segment."""
        self._drop(self._answered - self._before)

    def restart(self) -> None:
        """Start again with a restarted decoder state, whose first step is the next one."""
        self._drop(self._answered)
        self._first = self._answered = 0

    def _drop(self, until: int) -> None:
        while self._first < until:
            self._steps.popleft()
            self._first += 1
