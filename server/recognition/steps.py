"""The input side of one channel: audio in, steps for the engine out, each with a tag that says what it stands for.

It knows the model's step size and nothing of sockets, engines or text. The tag of a step returns with its result, so
that the output side (`server.recognition.segmenter`) needs no other word from here.
"""

from __future__ import annotations

from enum import Enum

import msgspec
import numpy as np

from model.config import ModelConfig
from server.audio.pcm import PCM, Resampler, Tiler, primed_start
from server.recognition.saved_state import SavedCutter


class Marker(Enum):
    """What a step's result is an answer to."""

    AUDIO = "audio"
    FLUSH = "flush"  # silence that pushes the last audio out of the model; says nothing by itself
    FINALIZE = "finalize"  # the last step of a flush that a client asked for
    CLOSE = "close"  # the last step of a channel


class StepTag(msgspec.Struct, frozen=True, gc=False):
    """Where a step ends: in model-rate samples of this channel, and in stream time; and when its audio arrived."""

    end_sample: int
    end_s: float
    marker: Marker
    arrived_s: float


class WindowTag(msgspec.Struct, frozen=True, gc=False):
    """Where a voice-activity window ends, in model-rate samples of this channel."""

    end_sample: int


class Work(msgspec.Struct, frozen=True):
    """One piece of audio for an engine, (S,) int16; `reset` starts its recurrent state afresh."""

    channel: int
    pcm: PCM
    tag: StepTag | WindowTag
    reset: bool = False


class StepCutter:
    """Cuts one channel into steps, and into voice-activity windows where `window_samples` is given."""

    def __init__(self, channel: int, sample_rate: int, config: ModelConfig, window_samples: int | None = None) -> None:
        self._channel = channel
        self._sample_rate = sample_rate
        self._config = config
        self._resampler = Resampler(sample_rate, config.sample_rate) if sample_rate != config.sample_rate else None
        self._steps = Tiler(config.step_samples)
        self._windows = Tiler(window_samples) if window_samples else None
        self._window_samples = window_samples or 0
        self._window_end = 0
        self._received = 0  # samples, at the client's rate
        self._flushed = 0  # of them, those before the last flush
        self._base_s = 0.0  # stream time of the last flush
        self._base_sample = 0  # model-rate samples before the last flush
        self._pushed = 0  # model-rate samples in whole steps since the last flush
        self._reset = False
        self._known_in = self._known_out = 0  # samples to come that a restored state has heard, and the tiler then
        self._settled = -1  # up to here, that one included, flushes were asked for before the state was saved

    @property
    def fresh(self) -> bool:
        """True while nothing was received since the last flush."""
        return self._received == self._flushed

    @property
    def received_s(self) -> float:
        """Stream time: the audio received so far."""
        return self._received / self._sample_rate

    @property
    def behind(self) -> bool:
        """True while audio is sent again that the restored state has heard; what was asked for there is done."""
        if self._received <= self._settled:
            return True
        heard = self._received - self._flushed
        return heard * self._config.sample_rate < self._pushed * self._sample_rate

    def saved(self) -> SavedCutter:
        """Return the place behind the last whole step."""
        return SavedCutter(self._flushed, self._base_sample, self._pushed, self._reset)

    def replay_from(self, saved: SavedCutter) -> int:
        """Return the sample, at the client's rate, from which on the audio must be sent again for this place."""
        return saved.flushed + primed_start(saved.pushed, self._sample_rate, self._config.sample_rate)[0]

    def restore(self, saved: SavedCutter, received: int) -> None:
        """Go on at a place that `saved` told; audio comes from `received` on, at or before its `replay_from`."""
        start, known = primed_start(saved.pushed, self._sample_rate, self._config.sample_rate)
        self._received = received
        self._settled = saved.flushed if received < saved.flushed else -1
        self._known_in, self._known_out = saved.flushed + start - received, known
        self._flushed, self._base_s = saved.flushed, saved.flushed / self._sample_rate
        self._base_sample, self._pushed, self._reset = saved.base_sample, saved.pushed, saved.reset

    def start_at(self, received: int) -> None:
        """Begin the stream time at this sample, at the client's rate."""
        self._received = self._flushed = received
        self._base_s = self.received_s

    def cut(self, pcm: PCM, now: float) -> list[Work]:
        """Take (S,) int16 at the client's rate; return the work it completes."""
        self._received += len(pcm)
        if self._known_in:
            known = min(self._known_in, len(pcm))
            self._known_in, pcm = self._known_in - known, pcm[known:]
        return self._cut(self._resampler.resample(pcm) if self._resampler else pcm, now)

    def flush(self, marker: Marker, now: float) -> list[Work]:
        """Push out everything received: the last step, whose result completes the text, carries `marker`."""
        work = self._cut(self._resampler.flush(), now) if self._resampler else []
        end_sample = self._base_sample + self._pushed + self._steps.filled
        tiles = [self._steps.pad()] if self._steps.filled else []
        silence = np.zeros(self._config.step_samples, np.int16)
        tiles += [silence] * max(self._config.flush_steps, 0 if tiles else 1)  # the marker needs a step to ride on
        end_s = self.received_s
        for number, tile in enumerate(tiles, start=1):
            tag = StepTag(end_sample, end_s, marker if number == len(tiles) else Marker.FLUSH, now)
            work.append(Work(self._channel, tile, tag, self._take_reset()))
        self._flushed, self._base_s = self._received, end_s
        self._known_in = self._known_out = 0
        self._base_sample, self._pushed = end_sample, 0
        self._reset = True
        return work

    def _cut(self, pcm: PCM, now: float) -> list[Work]:
        work: list[Work] = []
        received_s = self.received_s
        if self._known_out:
            known = min(self._known_out, len(pcm))
            self._known_out, pcm = self._known_out - known, pcm[known:]
        for tile in self._steps.push(pcm):
            self._pushed += len(tile)
            # A resampler may round up: no step ends after the audio that was received.
            end_s = min(self._base_s + self._pushed / self._config.sample_rate, received_s)
            tag = StepTag(self._base_sample + self._pushed, end_s, Marker.AUDIO, now)
            work.append(Work(self._channel, tile, tag, self._take_reset()))
        if self._windows is not None:
            for tile in self._windows.push(pcm):
                self._window_end += self._window_samples
                work.append(Work(self._channel, tile, WindowTag(self._window_end)))
        return work

    def _take_reset(self) -> bool:
        reset, self._reset = self._reset, False
        return reset
