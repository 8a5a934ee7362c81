"""Rest of one channel: steps of long silence are answered without computing them. Pure.

A channel rests from the first step with `after_s` of silence by the level of its audio (`LevelMeter`), once the results
of all earlier steps have left no text and no voice open. Later steps of silence only advance its time, so endpoints,
gaps and time-outs follow as if they were computed. The first step that is not silent ends the rest: model and decoder
continue from their states, and the last `REPLAY_S` of audio precede that step. A stream with speakers never rests:
the vectors of voices are those of all its audio.

A decision that needs results waits for them, and later steps of the channel wait for it. So the text depends on the
audio alone.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from model.description import ModelDescription
from server.audio.pcm import PCM
from server.recognition.events import Event
from server.recognition.segments.endpointing import ROUNDING
from server.recognition.segments.pauses import LevelMeter
from server.recognition.segments.segmenter import Segmenter
from server.recognition.steps import Auxiliary, Marker, StepTag, WindowTag, Work

REPLAY_S = 0.48  # audio before the end of a rest that is computed; a batcher's pace lets this much arrive at once
AFTER_FORK = 2  # steps after a fork: with the answer to the second, the first one's state has been exported


Answer = Callable[[int, StepTag], list[Event]]
"""Returns the events of a channel's step, as if the engine had answered it."""


class Rests:
    """The rests of a session's channels, and what they leave for its owner to send."""

    def __init__(self, channels: Sequence[Rest]) -> None:
        self.channels = channels
        self.skipped = 0  # steps answered without the engine, since the owner has read it
        self.unsent_work: list[Work] = []  # that a result has released; to be sent before any other
        self.unsent_events: list[Event] = []  # of audio

    def sent(self, work: list[Work], silences_s: Sequence[float], answer: Answer) -> list[Event]:
        """Replace work by what goes to the engines now; return the events of the steps that rest.

        `silences_s`: after each of its steps; 0 also before the fork of a pause.
        """
        events: list[Event] = []
        silences, computed = iter(silences_s), list[Work]()
        for piece in work:
            channel, tag = self.channels[piece.channel], piece.tag
            silence_s = next(silences) if isinstance(tag, StepTag) else 0.0
            if isinstance(tag, StepTag) and channel.skips(piece, tag, silence_s):
                self.skipped += 1
                events += answer(piece.channel, tag)
            else:
                events += self._divide(piece.channel, channel.take(piece, silence_s), computed, answer)
        work[:] = computed
        return events

    def due(self, channel: int, answer: Answer) -> list[Event]:
        """Decide about the steps that waited for a result; return the events of those that rest."""
        rest = self.channels[channel]
        return self._divide(channel, rest.due(), self.unsent_work, answer) if rest.waiting else []

    def _divide(
        self, channel: int, steps: Iterable[Work | StepTag], computed: list[Work], answer: Answer
    ) -> list[Event]:
        events: list[Event] = []
        for step in steps:
            if isinstance(step, Work):
                computed.append(step)
            else:
                self.skipped += 1
                events += answer(channel, step)
        return events


class Rest:
    """Decides which steps of one channel are computed; the session passes all of them."""

    def __init__(self, channel: Segmenter, config: ModelDescription, after_s: float) -> None:
        self._channel = channel
        self._step_samples = config.step_samples
        self._step_s = config.step_samples / config.sample_rate
        flush_s = (config.flush_steps + 1) * self._step_s  # after that all words are known
        self._after_s = max(after_s, flush_s) - ROUNDING
        replay_steps = math.ceil(REPLAY_S / self._step_s - ROUNDING)
        self.last: deque[PCM] = deque(maxlen=replay_steps)  # steps of this rest; after a restore the cutter fills it
        self._windows: list[Work] = []  # of the voice-activity model, for the next step
        self.waiting: deque[tuple[Work, list[Work], bool]] = deque()
        """Steps that wait for a decision, their windows, and whether it is silent there."""
        self._since_fork = AFTER_FORK
        self._end = LevelMeter(config)  # of a step of a flush, which begins with the audio after the last whole step
        self.resting = False
        self.marks = 0  # snapshots that were requested and lack this channel
        channel.rests = True

    def restore(self, resting: bool) -> None:
        """Continue from a snapshot."""
        self.resting = self._channel.segment.resting = resting

    def skips(self, step: Work, tag: StepTag, silence_s: float) -> bool:
        """Take a step in the middle of a rest, as nearly all are: it is answered now, and changes nothing else."""
        skips = self.resting and silence_s >= self._after_s and tag.marker is Marker.AUDIO
        if skips := skips and not (step.forks or self.marks or self.waiting or self._windows):
            self.last.append(step.pcm)
        return skips

    def take(self, piece: Work, silence_s: float) -> Iterator[Work | StepTag]:
        """Take a step and the silence after it, or a window of the next step; as `due`."""
        if isinstance(piece.tag, WindowTag):
            self._windows.append(piece)
            return
        silent = silence_s >= self._after_s and not piece.forks
        if silent and piece.tag.marker is not Marker.AUDIO:
            self._end.restore(self._channel.meter.saved())
            silent = self._end.push(piece.pcm) >= self._after_s
        windows, self._windows = self._windows, []
        if self.waiting or self.resting or (silent and piece.tag.marker is Marker.AUDIO):
            self.waiting.append((piece, windows, silent))
            yield from self.due()
        else:
            yield from self._computed(piece, windows)

    def due(self) -> Iterator[Work | StepTag]:
        """Yield the work to send now, in order, and the tag of each step that is answered without it.

        The caller answers it before it asks for the next.
        """
        channel, waiting = self._channel, self.waiting
        while waiting:
            step, windows, silent = waiting[0]
            tag = step.tag
            assert isinstance(tag, StepTag), "windows are kept with their step"
            if (self.resting or silent) and self.marks:
                return
            if silent and not self.resting and tag.marker is Marker.AUDIO and self._since_fork >= AFTER_FORK:
                settings = channel.settings
                if settings.steps_sent - len(waiting) > settings.steps_answered:
                    return
                if channel.may_rest:
                    channel.segment.rest()
                    self.resting = True
            waiting.popleft()
            if self.resting and silent:
                yield from self._skipped(step, windows, tag)
            else:
                if self.resting:
                    yield from self._wake(step, tag)
                yield from self._computed(step, windows)

    def _computed(self, step: Work, windows: list[Work]) -> Iterator[Work]:
        self._channel.segment.computes(step.pcm)
        self._since_fork = 0 if step.forks else self._since_fork + 1
        yield from windows
        yield step

    def _skipped(self, step: Work, windows: list[Work], tag: StepTag) -> Iterator[StepTag]:
        for window in windows:
            assert isinstance(window.tag, WindowTag), "steps are in `step`"
            assert window.tag.model is Auxiliary.VAD, "streams with speakers do not rest"
            self._channel.followed[Auxiliary.VAD].take(window.tag, np.zeros(window.tag.windows, np.float32))
        if tag.marker is Marker.AUDIO:
            self.last.append(step.pcm)
        yield tag
        if tag.marker in (Marker.FINALIZE, Marker.CLOSE):
            self.resting = self._channel.segment.resting = False
            self.last.clear()

    def _wake(self, step: Work, tag: StepTag) -> Iterator[Work]:
        channel = self._channel
        channel.segment.wake(len(self.last) * self._step_s)
        self.resting = False
        before = StepTag(tag.end_sample - self._step_samples, channel.segment.cursor_s, Marker.REPLAY, tag.arrived_s)
        for pcm in self.last:
            channel.segment.computes(pcm)
            yield Work(step.channel, pcm, before, prompt=step.prompt)
        self.last.clear()
