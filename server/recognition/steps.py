"""The input side of one channel: converts audio to steps for the engine, each with a tag.

It depends on the model's step size, but not on sockets, engines or text. The tag of a step is returned with its result,
and is all that the output side (`server.recognition.segments.segmenter`) needs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from enum import Enum, StrEnum

import msgspec
import numpy as np

from model.description import ModelDescription
from server.audio.pcm import PCM, Resampler, Tiler, WindowRows, downmix, primed_start
from server.recognition.saved_state import SavedCutter, SavedWindows


class Auxiliary(StrEnum):
    """A small model with an engine of its own, whose results the recognizer's rows wait for.

    The value begins the names of its engines.
    """

    VAD = "vad"  # probability of speech
    SPEAKERS = "speakers"  # vectors of voices


TOGETHER = {Auxiliary.VAD: 8, Auxiliary.SPEAKERS: 1}
"""Most windows in a row of an auxiliary model. A row that may have several ends with their number."""


class Marker(Enum):
    """Place of a step in the stream: in its audio, or in a flush."""

    AUDIO = "audio"
    FLUSH = "flush"  # silence that makes the model output its last audio
    FINALIZE = "finalize"  # last step of a flush requested by the client
    CLOSE = "close"  # last step of a channel
    REPLAY = "replay"  # audio before the end of a rest, which was answered before


class StepTag(msgspec.Struct, frozen=True, gc=False):
    """End of a step, in model-rate samples of its channel and in stream time, and the arrival of its audio."""

    end_sample: int
    end_s: float
    marker: Marker
    arrived_s: float


class WindowTag(msgspec.Struct, frozen=True, gc=False):
    """A row of an auxiliary model: the end of its last window, in model-rate samples of its channel."""

    end_sample: int
    model: Auxiliary = Auxiliary.VAD
    windows: int = 1


class Work(msgspec.Struct, frozen=True):
    """One piece of audio for an engine, (S,) int16; `reset` resets the recurrent state first.

    `forks`: the stream is forked after this step. `prompt`: number of its language, for a model that lets it choose.
    """

    channel: int
    pcm: PCM
    tag: StepTag | WindowTag
    reset: bool = False
    forks: bool = False
    prompt: int | None = None

    @property
    def row(self) -> PCM:
        """The input of a step: its samples, then 1 + the number of its language, if there is one."""
        return self.pcm if self.prompt is None else np.append(self.pcm, np.int16(1 + self.prompt))


NO_WINDOWS: Mapping[Auxiliary, int] = {}


class StepCutter:
    """Cuts one channel into steps, and into windows of auxiliary models, whose samples are given by model.

    A step's audio is cut into windows when the step is returned, so the windows of a stream depend only on its steps.
    Windows precede the step that completes them. The silence of a flush is in no window.

    A resampler holds back a varying amount of audio. With `margin_s`, longer than that, a step of resampled audio is
    returned once this much audio after it was received: a moment that depends on the audio alone.
    """

    def __init__(
        self,
        channel: int,
        sample_rate: int,
        config: ModelDescription,
        windows: Mapping[Auxiliary, int] = NO_WINDOWS,
        *,
        margin_s: float = 0.0,
    ) -> None:
        self.step_samples = config.step_samples
        self.prompt: int | None = None  # of the steps that are cut from now on
        self._channel = channel
        self._sample_rate = sample_rate
        self._config = config
        self._resampler = Resampler(sample_rate, config.sample_rate) if sample_rate != config.sample_rate else None
        self.period = 1 << 31 if self._resampler else config.step_samples  # of `samples_to_step`; long: not known
        self._margin = round(margin_s * sample_rate) if self._resampler else 0
        self._steps = Tiler(config.step_samples)
        self._complete: deque[tuple[PCM, float]] = deque()  # steps to return, and when they were complete
        self._lead_samples = config.lead_samples
        self._lead = np.zeros(self._lead_samples, np.int16) if self._lead_samples else None
        self._windows = {model: WindowRows(samples, TOGETHER[model]) for model, samples in windows.items()}
        self._plain = self._resampler is None and self._lead is None
        self._received = 0  # samples, at the client's rate
        self._flushed = 0  # samples, at the client's rate, before the last flush
        self._base_sample = 0  # model-rate samples before the last flush
        self._pushed = 0  # model-rate samples in whole steps since the last flush, with the lead
        self._reset = False
        self._skip_in = self._skip_out = 0  # samples to skip after a restore: before, and after, the resampler
        self.kept: deque[PCM] | None = None  # receives the steps that are only cut again
        self._again = 0  # number of further steps to cut again after a restore
        self._answered_to = -1  # samples up to which, inclusive, flushes were answered before the state was saved

    @property
    def fresh(self) -> bool:
        """True if nothing was received since the last flush."""
        return self._received == self._flushed and not self._again

    @property
    def received_s(self) -> float:
        """Stream time: the audio received so far."""
        return self._received / self._sample_rate

    @property
    def replaying(self) -> bool:
        """True while a client replays audio that the restored state contains; flushes there were answered before."""
        if self._received <= self._answered_to:
            return True
        since_flush = self._received - self._flushed
        answered = max(0, self._answered - self._lead_samples)
        return since_flush * self._config.sample_rate < answered * self._sample_rate

    @property
    def _stepped(self) -> int:
        """Model-rate samples of audio in whole steps since the last flush."""
        return max(0, self._pushed - self._lead_samples)

    @property
    def _answered(self) -> int:
        """Model-rate samples in whole steps since the last flush, with the lead and with those to cut again."""
        return self._pushed + self._again * self.step_samples

    def saved(self, kept_steps: int = 0) -> SavedCutter:
        """Return the position after the last whole step; `kept_steps` before it are cut again after a restore."""
        rows = self._windows.values()
        windows, kept = tuple([SavedWindows(one.end, one.rest.tobytes()) for one in rows]), kept_steps + self._again
        return SavedCutter(self._flushed, self._base_sample, self._answered, self._reset, windows, kept)

    def replay_from(self, saved: SavedCutter) -> int:
        """Return the sample, at the client's rate, from which a client must send its audio again for this position."""
        return saved.flushed + self._primed_start(saved)[0]

    def stepped_to(self, saved: SavedCutter) -> int:
        """Return the sample, at the client's rate, up to which whole steps were cut."""
        stepped = max(0, saved.pushed - self._lead_samples)
        return saved.flushed + stepped * self._sample_rate // self._config.sample_rate

    def restore(self, saved: SavedCutter, received: int) -> None:
        """Continue at a saved position; audio comes from sample `received` on, at or before `replay_from`."""
        start, self._skip_out = self._primed_start(saved)
        self._received = received
        self._answered_to = saved.flushed if received < saved.flushed else -1
        self._skip_in = saved.flushed + start - received
        self._flushed = saved.flushed
        self._again, self._plain = saved.kept, self._plain and not saved.kept
        self._base_sample, self._reset = saved.base_sample, saved.reset
        self._pushed = saved.pushed - saved.kept * self.step_samples
        for windows, state in zip(self._windows.values(), saved.windows, strict=True):
            windows.end, windows.rest = state.end, np.frombuffer(state.rest, np.int16)

    def _primed_start(self, saved: SavedCutter) -> tuple[int, int]:
        stepped = max(0, saved.pushed - saved.kept * self.step_samples - self._lead_samples)
        return primed_start(stepped, self._sample_rate, self._config.sample_rate)

    def start_at(self, received: int) -> None:
        """Let the stream time begin at sample `received`, at the client's rate."""
        self._received = self._flushed = received

    @property
    def samples_to_step(self) -> int:
        """Samples that complete a step, at least. 0 if that is not known: audio that starts with a lead, or of
        an unusual rate.
        """
        if self._lead is not None and not (self._pushed or self._steps.filled):
            return 0
        samples = self.step_samples - self._steps.filled
        return samples if self._resampler is None else self._resampler.samples_until(samples)

    def cut(self, pcm: PCM, now: float) -> list[Work]:
        """Take (S,) int16 at the client's rate; return the work it completes."""
        self._received += len(pcm)
        if self._skip_in:
            skipped = min(self._skip_in, len(pcm))
            self._skip_in, pcm = self._skip_in - skipped, pcm[skipped:]
        if not self._plain:
            return self._cut(self._resampler.resample(pcm) if self._resampler else pcm, now)
        # As `_cut` at the model's rate without lead; most streams use it, at a third of the time.
        size, steps = self.step_samples, self._steps
        tiles = [pcm] if len(pcm) == size and not steps.filled else steps.push(pcm)
        work: list[Work] = []
        for tile in tiles:
            if self._windows:
                work += self._windows_of(tile)
            self._pushed += size
            end_s = (self._flushed + self._pushed) / self._sample_rate
            tag = StepTag(self._base_sample + self._pushed, end_s, Marker.AUDIO, now)
            work.append(Work(self._channel, tile, tag, self._reset, prompt=self.prompt))
            self._reset = False
        return work

    def flush(self, marker: Marker, now: float) -> list[Work]:
        """Return steps for all audio received; the last one, whose result completes the text, carries `marker`."""
        work = self._cut(self._resampler.flush(), now, flushing=True) if self._resampler else []
        if self._again:
            self._end_replay()
        samples = max(0, self._pushed + self._steps.filled - self._lead_samples)
        end_sample = self._base_sample + samples
        tiles: list[PCM] = []
        if self._steps.filled:
            work += self._windows_of(self._steps.rest)
            tiles.append(self._steps.pad())
        tiles += self._silence(self._silent_steps(samples, self._pushed) - len(tiles))
        end_s = self.received_s
        for number, tile in enumerate(tiles, start=1):
            tag = StepTag(end_sample, end_s, marker if number == len(tiles) else Marker.FLUSH, now)
            work.append(Work(self._channel, tile, tag, self._take_reset(), prompt=self.prompt))
        self._flushed = self._received
        self._skip_in = self._skip_out = 0
        self._base_sample, self._pushed = end_sample, 0
        self._reset = True
        return work

    def _end_replay(self) -> None:
        """End at the last step that was answered: the client ends before it has sent all of them again."""
        self._pushed, self._again = self._answered, 0
        if self._steps.filled:
            self._steps.pad()
        end = self._flushed + self._stepped * self._sample_rate // self._config.sample_rate
        self._received = max(self._received, end)

    def flush_of(self, step: Work) -> tuple[Work, ...]:
        """Return the steps of silence that would flush the audio up to a step cut since the last flush.

        They are those of a stream that ends there; the position of this one does not change.
        """
        tag = step.tag
        assert isinstance(tag, StepTag), "windows of voice activity are not flushed"
        samples = tag.end_sample - self._base_sample
        tiles = self._silence(self._silent_steps(samples, samples + self._lead_samples))
        markers = [Marker.FLUSH] * (len(tiles) - 1) + [Marker.CLOSE]
        return tuple([
            Work(self._channel, tile, StepTag(tag.end_sample, tag.end_s, marker, tag.arrived_s), prompt=step.prompt)
            for tile, marker in zip(tiles, markers, strict=True)
        ])  # fmt: skip

    def _silent_steps(self, samples: int, pushed: int) -> int:
        """Steps of a flush after `samples` of audio, `pushed` of them, with the lead, in whole steps.

        At least one, because a marker is carried by a step.
        """
        return max(1, self._config.steps_of(samples) - pushed // self._config.step_samples)

    def _silence(self, steps: int) -> list[PCM]:
        return [np.zeros(self._config.step_samples, np.int16)] * steps

    def _cut(self, pcm: PCM, now: float, *, flushing: bool = False) -> list[Work]:
        work: list[Work] = []
        if self._skip_out:
            skipped = min(self._skip_out, len(pcm))
            self._skip_out, pcm = self._skip_out - skipped, pcm[skipped:]
        if self._lead is not None and len(pcm) and not (self._pushed or self._steps.filled or self._complete):
            self._steps.push(self._lead)
        self._complete += [(tile, now) for tile in self._steps.push(pcm)]
        while self._complete and (flushing or self._may_go(len(self._complete[0][0]))):
            tile, complete_s = self._complete.popleft()
            if self._again:
                self._cut_again(tile)
                continue
            work += self._windows_of(tile)
            self._pushed += len(tile)
            stepped = self._stepped
            tag = StepTag(self._base_sample + stepped, self._stepped_s(stepped), Marker.AUDIO, complete_s)
            work.append(Work(self._channel, tile, tag, self._take_reset(), prompt=self.prompt))
        return work

    def _stepped_s(self, stepped: int) -> float:
        """Return the stream time after `stepped` model-rate samples since the last flush.

        One division of whole numbers, so it depends on the audio alone: a sum of seconds, or the smaller one of two,
        may have another last bit in longer messages. A flushed resampler may round up: no step ends after the audio.
        """
        rate, model_rate = self._sample_rate, self._config.sample_rate
        return min(self._flushed * model_rate + stepped * rate, self._received * model_rate) / (rate * model_rate)

    def _cut_again(self, tile: PCM) -> None:
        """Keep a step that was answered before the state was saved."""
        assert self.kept is not None, "only streams that rest, or read segments again, keep steps"
        self.kept.append(tile)
        self._pushed += len(tile)
        self._again -= 1
        self._plain = not self._again and self._resampler is None and self._lead is None

    def _windows_of(self, step: PCM) -> list[Work]:
        """Return the windows completed by the samples of the next step, without its part of the lead."""
        if not self._windows:
            return []
        pcm = step[max(0, self._lead_samples - self._pushed) :]
        return [
            Work(self._channel, row, WindowTag(windows.end, model, count))
            for model, windows in self._windows.items()
            for row, count in windows.cut(pcm)
        ]

    def _may_go(self, samples: int) -> bool:
        """Whether enough audio after the next step was received; `samples` is the step's size at the model's rate."""
        if not self._margin:
            return True
        end = self._pushed + samples - self._lead_samples
        received = self._received - self._flushed - self._margin
        return received * self._config.sample_rate >= end * self._sample_rate

    def _take_reset(self) -> bool:
        reset, self._reset = self._reset, False
        return reset


class AudioInput:
    """The audio of one connection: a cutter for each recognized channel."""

    def __init__(self, cutters: tuple[StepCutter, ...], *, multichannel: bool, waits: bool) -> None:
        """`waits`: whether samples that complete no step may wait at the sender."""
        self.cutters = cutters
        self.period = cutters[0].period  # after this many samples, `samples_to_step` is as before
        self._multichannel, self._waits = multichannel, waits

    def cut(self, samples: PCM, now: float, channel: int | None) -> list[Work]:
        """Take (S, C) int16 at the client's rate, or (S, 1) of one channel; return the work it completes."""
        if channel is not None:
            return self.cutters[channel].cut(samples[:, 0], now)
        if not self._multichannel:
            mono = samples[:, 0] if samples.shape[1] == 1 else downmix(samples)  # (S,)
            return self.cutters[0].cut(mono, now)
        alone = [np.ascontiguousarray(samples[:, i]) for i in range(len(self.cutters))]  # (S,): contiguous in a step
        return [piece for cutter, pcm in zip(self.cutters, alone, strict=True) for piece in cutter.cut(pcm, now)]

    @property
    def received_s(self) -> float:
        """Stream time: the audio received."""
        return max(self.by_channel_s)

    @property
    def by_channel_s(self) -> tuple[float, ...]:
        """The audio received on each recognized channel."""
        return tuple([cutter.received_s for cutter in self.cutters])

    @property
    def samples_to_step(self) -> int:
        """Samples per channel that may complete a step; fewer can wait. 0 if no sample can wait."""
        return min([cutter.samples_to_step for cutter in self.cutters]) if self._waits else 0
