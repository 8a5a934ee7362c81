"""One connection, sans I/O: options, the channels that they ask for, and what may wait unanswered.

Bytes and flush requests go in, work for the engine comes out; results go in, events come out. Sockets, engines and
clocks are the callers' business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from model.config import ModelConfig
from model.ctc import Decoder
from server.audio import PCM, PcmReader, downmix
from server.channel import Channel
from server.errors import BacklogExceeded
from server.events import Closed, CloseReason, Event, FinalReason
from server.keyterms import NO_KEYTERMS, ChangeAllowance, Keyterms, checked_size
from server.rules import Rules
from server.speech import SpeechTrack
from server.steps import Marker, StepCutter, StepTag, Work


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
        self._step_s = config.step_samples / config.sample_rate
        self._reader = PcmReader(options.channels)
        rules = _rules(options, limits)
        tracks = [SpeechTrack(window_samples, config.sample_rate) if window_samples else None for _ in self._indices]
        self.supports_keyterms = decoder.supports_bias
        self.keyterms = options.keyterms
        self._changes = ChangeAllowance()
        bias = options.keyterms.bias
        self.channels = tuple(Channel(i, config, decoder, rules, bias=bias, speech=tracks[i]) for i in self._indices)
        self._cutters = tuple(StepCutter(i, options.sample_rate, config, window_samples) for i in self._indices)
        self._waiting = 0  # steps pushed and not answered, over all channels
        self.steps = 0  # answered
        self._closing: CloseReason | None = None

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
        self._changes.spend(checked_size(phrases, self.keyterms.keywords), self.audio_s)
        self.set_keyterms(self.keyterms.replaced(phrases))

    def set_keyterms(self, keyterms: Keyterms) -> None:
        """Bias the audio that follows, on all channels; audio received before keeps the old terms."""
        self.keyterms = keyterms
        for channel in self.channels:
            channel.set_bias(keyterms.bias)

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

    def decoded(self, channel: Channel, tag: StepTag) -> list[Event]:
        """Say what the result of one step changes; the channel's decoder state has been advanced over it."""
        self._waiting -= 1
        self.steps += 1
        events = channel.decoded(tag)
        return self._with_end(events) if channel.closed else events

    def _flush(self, indices: range, marker: Marker, reason: FinalReason, now: float) -> tuple[list[Work], list[Event]]:
        work: list[Work] = []
        events: list[Event] = []
        for i in indices:
            if self._cutters[i].fresh:
                events += self.channels[i].nothing_to_flush(reason)
            else:
                self.channels[i].flushing()
                work += self._cutters[i].flush(marker, now)
        return self._count(work), events

    def _count(self, work: list[Work]) -> list[Work]:
        for piece in work:
            if isinstance(piece.tag, StepTag):
                self._waiting += 1
                self.channels[piece.channel].pushed()
        return work

    def _with_end(self, events: list[Event]) -> list[Event]:
        if self._closing is not None and all(channel.closed for channel in self.channels):
            events.append(Closed(self._closing, self.audio_s))
        return events


def _rules(options: SessionOptions, limits: Limits) -> Rules:
    asked_ms, gap_ms = options.endpointing_ms, options.utterance_end_ms
    quiet_s = max(asked_ms or 0.0, limits.min_endpoint_ms) / 1_000
    silence_ms = limits.silence_endpoint_ms
    return Rules(
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
