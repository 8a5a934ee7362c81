"""One connection, sans I/O: audio to steps by channel, results of steps to events in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from model.config import ModelConfig
from model.ctc.words import Decoder
from server.audio.pcm import BLOCK_S, PCM, PcmReader, downmix
from server.errors import (
    BacklogExceeded,
    CloseReason,
)
from server.recognition.endpointing import EndpointRules, VoiceActivity
from server.recognition.events import Closed, Event, FinalReason
from server.recognition.keyterms import NO_KEYTERMS, ChangeAllowance, Keyterms, checked_size
from server.recognition.result_order import ResultOrder
from server.recognition.saved_state import SavedInput, SavedStream
from server.recognition.segmenter import Segmenter
from server.recognition.steps import Marker, StepCutter, StepTag, Work


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """What a client asked for. `multichannel` recognises each channel by itself, otherwise they are mixed down."""

    sample_rate: int
    channels: int = 1
    multichannel: bool = False
    partials: bool = False
    every_step: bool = False
    tell_stable: bool = False
    partial_interval_ms: float = 0.0
    endpointing_ms: float | None = 10.0
    utterance_end_ms: float | None = None
    keyterms: Keyterms = NO_KEYTERMS
    resumable: bool = False

    @property
    def streams(self) -> int:
        """How many channels are recognised, each in a slot of its own."""
        return self.channels if self.multichannel else 1


@dataclass(frozen=True, slots=True)
class Limits:
    """What the operator sets for every connection."""

    min_endpoint_ms: float = 400.0
    silence_endpoint_ms: float | None = 2_400.0
    max_utterance_s: float = 30.0
    max_backlog_s: float = 30.0


class Session:
    """The channels of one connection and the order of what is said about them."""

    def __init__(
        self,
        options: SessionOptions,
        config: ModelConfig,
        decoder: Decoder,
        limits: Limits,
        window_samples: int | None = None,  # None: no voice-activity model
    ) -> None:
        self.options = options
        self._max_backlog_s = limits.max_backlog_s
        self._min_endpoint_ms = limits.min_endpoint_ms
        self._step_s = config.step_samples / config.sample_rate
        self._reader = PcmReader(options.channels)
        rules = _rules(options, limits)
        tracks = [VoiceActivity(window_samples, config.sample_rate) if window_samples else None for _ in self._indices]
        self.supports_keyterms = decoder.supports_bias
        self.keyterms = options.keyterms
        self._changes = ChangeAllowance()
        bias = options.keyterms.bias
        self.channels = tuple(Segmenter(i, config, decoder, rules, bias=bias, speech=tracks[i]) for i in self._indices)
        self._cutters = tuple(StepCutter(i, options.sample_rate, config, window_samples) for i in self._indices)
        self._waiting = 0  # steps pushed and not answered, over all channels
        self.steps = 0  # answered
        self._closing: CloseReason | None = None
        # What a voice-activity model has heard is not saved, so beside one a stream cannot be resumed.
        self._delivery = ResultOrder(options.streams) if options.resumable and not window_samples else None
        self._unmarked = 0  # steps since the last mark, over all channels

    @property
    def _indices(self) -> range:
        return range(self.options.streams)

    @property
    def audio_s(self) -> float:
        """Stream time: the audio received."""
        return self._cutters[0].received_s

    @property
    def backlog_s(self) -> float:
        """Audio pushed and not answered, per channel."""
        return self._waiting * self._step_s / len(self.channels)

    def replace_phrases(self, phrases: Sequence[str]) -> None:
        """Bias the audio that follows towards other phrases, and the same keywords.

        Raises: KeytermsTooOften; BiasError for too many of them. The old ones stay.
        """
        if any(cutter.behind for cutter in self._cutters):
            return  # done, or undone again, before the state was saved
        self._changes.spend(checked_size(phrases, self.keyterms.keywords), self.audio_s)
        self.set_keyterms(self.keyterms.replaced(phrases))

    def set_keyterms(self, keyterms: Keyterms) -> None:
        """Bias the audio that follows, on all channels; audio received before keeps the old terms."""
        self.keyterms = keyterms
        for channel in self.channels:
            channel.set_bias(keyterms.bias)

    def set_endpointing(self, silence_ms: float) -> None:
        """End utterances of the audio that follows by so much silence, at least the operator's. Not if resumable."""
        assert not self.resumable, "it is not saved"
        for channel in self.channels:
            channel.set_endpoint(max(silence_ms, self._min_endpoint_ms) / 1_000)

    def release(self) -> None:
        """Give back what the decoder holds for the channels. Once, when nothing is decoded any more."""
        for channel in self.channels:
            channel.release()

    @property
    def closing(self) -> bool:
        """True once the end was asked for; audio is ignored from then on."""
        return self._closing is not None

    def audio(self, chunk: bytes, now: float) -> list[Work]:
        """Take a chunk of raw audio, of any length. Raises: BacklogExceeded."""
        return self.samples(self._reader.read(chunk), now)

    def samples(self, samples: PCM, now: float) -> list[Work]:
        """Take decoded audio, (S, C) int16. Raises: BacklogExceeded."""
        if self._closing is not None or not len(samples):
            return []
        if self.backlog_s + len(samples) / self.options.sample_rate > self._max_backlog_s:
            raise BacklogExceeded(f"more than {self._max_backlog_s:g} s of audio unanswered")
        if self.options.multichannel:
            alone = [np.ascontiguousarray(samples[:, i]) for i in self._indices]  # (S,): a step's samples lie together
            work = [w for i in self._indices for w in self._cutters[i].cut(alone[i], now)]
            if self._delivery is not None:  # the same order however the audio is cut into messages
                work.sort(key=lambda piece: piece.tag.end_sample)
        else:
            work = self._cutters[0].cut(downmix(samples), now)
        return self._count(work)

    def finalize(self, channel: int | None, now: float) -> tuple[list[Work], list[Event]]:
        """Flush one channel, or all: the work to do, and what can be said at once."""
        indices = self._indices if channel is None else range(channel, channel + 1)
        return self._flush(indices, Marker.FINALIZE, FinalReason.FINALIZE, now)

    def close(self, reason: CloseReason, now: float) -> tuple[list[Work], list[Event]]:
        """Flush everything and end. Only a client that asked for the end gets an empty last final."""
        if self._closing is not None:
            return [], []
        self._closing = reason
        if reason is not CloseReason.CLOSE_STREAM:
            for channel in self.channels:
                channel.close_with_text_only()
        work, events = self._flush(self._indices, Marker.CLOSE, FinalReason.CLOSE, now)
        return work, self._with_end(events)

    # What a resumable stream has besides

    @property
    def untouched(self) -> bool:
        """Whether nothing was received and nothing changed."""
        return self.audio_s == 0 and self.keyterms is self.options.keyterms and not self.closing

    @property
    def resumable(self) -> bool:
        """Whether its state can be saved and restored."""
        return self._delivery is not None

    @property
    def delivery(self) -> ResultOrder:
        """Of a resumable stream."""
        assert self._delivery is not None
        return self._delivery

    def unmarked_s(self) -> float:
        """Audio that was handed to the engine since the last mark."""
        return self._unmarked * self._step_s / len(self.channels)

    def mark(self) -> None:
        """Have the state behind all steps so far saved; what the engine exports of each stream goes to `exported`."""
        phrases = None if self.keyterms is self.options.keyterms else self.keyterms.phrases
        cutters = tuple(cutter.saved() for cutter in self._cutters)
        self.delivery.mark(SavedInput(cutters, phrases, self._changes.saved()))
        self._unmarked = 0

    def exported(self, channel: Segmenter, state: bytes) -> list[Event]:
        """Take the engine's state of one channel, whose results up to there are decoded; return what can be said."""
        saved = channel.saved(self.options.keyterms.bias)
        return self._with_end(self.delivery.exported(channel.index, state, saved))

    def released(self) -> list[Event]:
        """Return what waited for `delivery.take_saved`."""
        return self._with_end(self.delivery.release())

    def replay_from_s(self, saved: SavedInput) -> float:
        """Stream time from which on the audio must be sent again."""
        return self._replay_from(saved) / self.options.sample_rate

    def _replay_from(self, saved: SavedInput) -> int:
        places = zip(self._cutters, saved.cutters, strict=True)
        return min(cutter.replay_from(place) for cutter, place in places)

    def restoring(self, saved: SavedStream) -> Callable[[], None]:
        """Return what makes an untouched session go on as the one that was saved, with the audio from `audio_s` on.

        The model's states are the caller's. Raises: ValueError, ModelError.
        """
        default = self.options.keyterms.bias
        paired = list(zip(self.channels, saved.channels, strict=True))
        states = [channel.restored_state(one, default) for channel, one in paired]
        phrases = saved.audio.phrases
        keyterms = self.keyterms if phrases is None else self.keyterms.replaced(phrases)
        begin = self._replay_from(saved.audio)

        def go_on() -> None:
            self.keyterms = keyterms
            self._changes.restore(saved.audio.allowance)
            self.delivery.finals = saved.finals
            for cutter, place in zip(self._cutters, saved.audio.cutters, strict=True):
                cutter.restore(place, begin)
            for (channel, one), (state, bias) in zip(paired, states, strict=True):
                channel.restore(one, state, bias)

        return go_on

    def start_at(self, stream_s: float, finals: int) -> None:
        """Begin the stream time there, at a whole sample, behind so many finals. Of an untouched session."""
        sample = int(stream_s * self.options.sample_rate + 0.5)
        if self._delivery is not None:
            self._delivery.finals = finals
        for cutter, channel in zip(self._cutters, self.channels, strict=True):
            cutter.start_at(sample)
            channel.start_at(cutter.received_s)

    def decoded(self, channel: Segmenter, tag: StepTag) -> list[Event]:
        """Say what the result of one step changes; the channel's decoder state has been advanced over it."""
        self._waiting -= 1
        self.steps += 1
        events = channel.decoded(tag)
        if self._delivery is not None:
            return self._with_end(self._delivery.answered(channel.index, events))
        return self._with_end(events) if channel.closed else events

    def _flush(self, indices: range, marker: Marker, reason: FinalReason, now: float) -> tuple[list[Work], list[Event]]:
        work: list[Work] = []
        events: list[Event] = []
        for i in indices:
            if marker is Marker.FINALIZE and self._cutters[i].behind:
                continue  # done before the state was saved
            if self._cutters[i].fresh and self._delivery is not None:  # it has its place, whatever is answered by now
                events += self.channels[i].empty_at(self._cutters[i].received_s, reason)
            elif self._cutters[i].fresh:
                events += self.channels[i].nothing_to_flush(reason)
            else:
                self.channels[i].flushing()
                work += self._cutters[i].flush(marker, now)
        self._count(work)
        return work, events if self._delivery is None else self._delivery.said(events)

    def _count(self, work: list[Work]) -> list[Work]:
        for piece in work:
            if isinstance(piece.tag, StepTag):
                self._waiting += 1
                self.channels[piece.channel].pushed()
                if self._delivery is not None:
                    self._unmarked += 1
                    self._delivery.pushed(piece.channel)
        return work

    def _with_end(self, events: list[Event]) -> list[Event]:
        if self._closing is not None and all(channel.closed for channel in self.channels):
            if self._delivery is not None and not self._delivery.finishes():
                return events
            events.append(Closed(self._closing, self.audio_s))
        return events


def _rules(options: SessionOptions, limits: Limits) -> EndpointRules:
    asked_ms, gap_ms = options.endpointing_ms, options.utterance_end_ms
    quiet_s = max(asked_ms or 0.0, limits.min_endpoint_ms) / 1_000
    silence_ms = limits.silence_endpoint_ms
    return EndpointRules(
        endpoint_s=None if asked_ms is None else quiet_s,
        silence_s=None if asked_ms is None or silence_ms is None else silence_ms / 1_000,
        quiet_s=quiet_s,
        utterance_gap_s=None if gap_ms is None else gap_ms / 1_000,
        max_utterance_s=limits.max_utterance_s,
        partials=options.partials,
        every_step=options.every_step,
        tell_stable=options.tell_stable,
        partial_interval_s=options.partial_interval_ms / 1_000,
    )


IN_FLIGHT_S = 4.0  # enough to keep a row of every batch busy while the next block is decoded
MAX_BACKLOG_S = IN_FLIGHT_S + 2 * BLOCK_S


DEFAULT_ENDPOINTING_MS = 10.0  # Source: Deepgram's page on endpointing
