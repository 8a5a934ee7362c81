"""Pauses of one channel: trailing silence by audio level alone, the forks in it, and questions to a turn model. Pure.

Audio is silent while its level is near the lowest of the last seconds, or far below the loudest. Either condition is
enough: the noise floor of a quiet room is far below speech, that of a loud room only little. Levels are integers
computed from the samples of one step, so silence depends neither on the batch nor on message boundaries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

import msgspec
import numpy as np

from model.audio.levels import FADES, LOUD, LOUDEST, LOWEST, NUMBER, RECENT, SILENT, follow_silence, new_meter
from model.description import ModelDescription
from model.turn_ends.whisper_features import SAMPLES
from server.audio.pcm import PCM
from server.recognition.events import Silence
from server.recognition.results.pending_finals import PendingFork, Result
from server.recognition.saved_state import SavedLevels
from server.recognition.segments.channel_settings import SettingsByStep
from server.recognition.segments.endpointing import ROUNDING
from server.recognition.segments.speech_gate import LEVEL_S, level_limits
from server.recognition.steps import Marker, StepCutter, StepTag, Work

FLOOR_S = 3.0  # speech is compared with the lowest level of this time
FORGOTTEN_DB_PER_S = 10.0  # of the loudest level

ASK_S = (0.2, 0.6)  # silence after which the model is asked: once per pause, and once more if the pause continues
ANSWER_STEPS = 2  # from the step of a question to the step after which its answer counts: 160 ms

Done = Callable[[float], bool]
Ask = Callable[[PCM, Done], None]
"""Asks the turn model about the end of these samples; the function gets the answer later, or is never called.

The function returns whether the answer is in time.
"""


class LevelMeter:
    """Measures the silence at the end of a channel's audio by its level, step by step."""

    def __init__(self, config: ModelDescription) -> None:
        step_s = config.step_samples / config.sample_rate
        self._per_step = max(1, round(step_s / LEVEL_S))
        self._level_s = step_s / self._per_step
        self._limits = level_limits(config.step_samples // self._per_step)
        self._meter = new_meter(round(FLOOR_S / self._level_s), FORGOTTEN_DB_PER_S * self._level_s)

    @property
    def silence_s(self) -> float:
        """Silence at the end of the audio, 0 during speech."""
        return int(self._meter[SILENT]) * self._level_s

    def push(self, step: PCM) -> float:
        """Take a step (S,); return the silence at its end."""
        # A copy, as in `band_levels`.
        return follow_silence(step.copy(), self._per_step, self._limits, self._meter) * self._level_s

    def saved(self) -> SavedLevels:
        """Return a snapshot, with the recent levels that can become the lowest."""
        number, recent = int(self._meter[NUMBER]), self._meter[RECENT:].tolist()
        lowest: list[tuple[int, int]] = []
        for at in range(number - 1, max(number - len(recent), 0) - 1, -1):
            if not lowest or recent[at % len(recent)] < lowest[-1][1]:
                lowest.append((at, int(recent[at % len(recent)])))
        loud, silent = int(self._meter[LOUD]), int(self._meter[SILENT])
        return SavedLevels(tuple(reversed(lowest)), float(self._meter[LOUDEST]), number, loud, silent)

    def restore(self, saved: SavedLevels) -> None:
        """Continue from a snapshot."""
        recent = len(self._meter) - RECENT
        self._meter = new_meter(recent, float(self._meter[FADES]))
        for at, level in reversed(saved.lowest):
            self._meter[LOWEST] = self._meter[RECENT + at % recent] = level
        self._meter[[LOUDEST, NUMBER, LOUD, SILENT]] = saved.loudest, saved.number, saved.loud, saved.silent


class Pauses:
    """Finds the step of each pause of one channel after which the stream is forked.

    A pause has at most one fork: at the end of the first step with `fork_after_s` of silence.
    """

    def __init__(self, fork_after_s: float) -> None:
        self.fork_after_s = fork_after_s
        """Silence before a fork, for later steps."""
        self._silence_s = 0.0
        self._spoken = False  # since the last fork
        self._unanswered: deque[tuple[Silence, PendingFork | None]] = deque()  # one for each unanswered step

    @property
    def spoken(self) -> bool:
        """Whether speech was sent that no fork has followed yet."""
        return self._spoken

    def forks(self, silence_s: float) -> bool:
        """Take the silence after a step of audio; return whether the stream is forked after it."""
        before_s, self._silence_s = self._silence_s, silence_s
        self._spoken = self._spoken or self._silence_s < before_s or not self._silence_s
        forks = self._spoken and self._silence_s >= self.fork_after_s
        if forks:
            self._spoken = False
        return forks

    def sent(self, step: Work, silence_s: float, cutter: StepCutter) -> Work:
        """Take a step of audio or of a flush that is sent to the engine; return it, marked if the stream is forked
        there.

        `silence_s`: after the step; `cutter`: that of the channel.
        """
        tag, fork = step.tag, None
        assert isinstance(tag, StepTag), "windows of voice activity have no pauses"
        if tag.marker is Marker.AUDIO and self.forks(silence_s):
            fork = PendingFork(step.channel, tag.end_s, cutter.flush_of(step))
        self._unanswered.append((Silence(step.channel, tag.end_s, self._silence_s), fork))
        return step if fork is None else msgspec.structs.replace(step, forks=True)

    def answered(self, results: list[Result]) -> list[Result]:
        """Return the results of the oldest step, preceded by its silence and followed by the fork that starts after it,
        if any.
        """
        silence, fork = self._unanswered.popleft()
        if fork is None:
            return [silence, *results]
        return [silence, *results, fork]


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

    def __init__(self, settings: SettingsByStep, ask: Ask) -> None:
        self._settings, self._ask = settings, ask
        self._audio = LastAudio()
        self._pause = 0  # number of the present pause
        self._asked = 0  # questions in the present pause
        self._silence_s = 0.0

    def sent(self, step: PCM, silence_s: float) -> None:
        """Take a step of audio, which the channel has sent to the engine, and the silence after it."""
        self._audio.add(step)
        before_s, self._silence_s = self._silence_s, silence_s
        number = self._settings.steps_sent
        if self._silence_s < before_s and self._asked:
            self._pause, self._asked = self._pause + 1, 0
            self._settings.take_answer(None, number)
        if self._asked < len(ASK_S) and self._silence_s >= ASK_S[self._asked] - ROUNDING:
            self._asked += 1
            self._ask(self._audio.samples, partial(self._answered, self._pause, number + ANSWER_STEPS))

    def _answered(self, pause: int, after_step: int, answer: float) -> bool:
        return pause == self._pause and self._settings.take_answer(answer, after_step)
