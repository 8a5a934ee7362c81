"""One connection, sans I/O: audio to steps by channel, results of steps to events in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from model.ctc.words import Decoder, Word
from model.description import ModelDescription
from server.audio.pcm import BLOCK_S, MARGIN_S, PCM, downmix
from server.errors import BacklogExceeded, BadParameter, CloseReason
from server.recognition.endpointing import EndpointRules, VoiceActivity
from server.recognition.events import Closed, Event, FinalReason, StepTiming
from server.recognition.keyterms import NO_KEYTERMS, ChangeAllowance, Keyterms, checked_size
from server.recognition.pending_finals import HeldSteps, OpenFinal, open_finals
from server.recognition.result_order import ResultOrder
from server.recognition.saved_state import SavedInput, SavedStream
from server.recognition.segmenter import Closing, Segmenter
from server.recognition.steps import Marker, StepCutter, StepTag, Work

DEFAULT_ENDPOINTING_MS = 10.0  # Source: Deepgram's page on endpointing
IN_FLIGHT_S = 4.0  # of an upload: enough to keep a row of every batch busy while the next block is decoded
MAX_BACKLOG_S = IN_FLIGHT_S + 2 * BLOCK_S  # of an upload


Finals = Literal["fast", "accurate"]  # accurate: ended segments are read again by another network
FINALS: tuple[Finals, ...] = get_args(Finals)
SHOWN = 64  # characters of what was asked


def finals_of(asked: str) -> Finals | None:
    """Return how finals are to be made, as a client says it; None where it says nothing. Raises: BadParameter."""
    for each in FINALS:
        if asked == each:
            return each
    if asked:
        raise BadParameter(f"finals: {asked[:SHOWN]!r} is none of {', '.join(FINALS)}")
    return None


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """Options of one connection. `multichannel` recognises each channel by itself; otherwise they are mixed down."""

    sample_rate: int
    channels: int = 1
    multichannel: bool = False
    partials: bool = False
    every_step: bool = False
    tell_stable: bool = False
    partial_interval_ms: float = 0.0
    endpointing_ms: float | None = DEFAULT_ENDPOINTING_MS
    utterance_end_ms: float | None = None
    keyterms: Keyterms = NO_KEYTERMS
    resumable: bool = False
    grammar: str = ""  # by name, of those that the model has; "": none
    finals: Finals | None = None  # None: as the server has them

    @property
    def streams(self) -> int:
        """Channels that are recognised, each in a slot of its own."""
        return self.channels if self.multichannel else 1


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits that the operator sets for every connection."""

    min_endpoint_ms: float = 400.0
    accurate_endpoint_ms: float = 700.0
    silence_endpoint_ms: float | None = 2_400.0
    max_utterance_s: float = 30.0
    max_backlog_s: float = 30.0

    def with_accurate_finals(self) -> Limits:
        """The limits of a stream that has accurate finals: a pause ends its segments later."""
        return replace(self, min_endpoint_ms=max(self.min_endpoint_ms, self.accurate_endpoint_ms))


class Session:
    """The channels of one connection: cuts their audio into steps, makes events of the results, in order."""

    def __init__(
        self,
        options: SessionOptions,
        config: ModelDescription,
        decoder: Decoder,
        limits: Limits,
        window_samples: int | None = None,  # None: no voice-activity model
    ) -> None:
        self.options = options
        self._max_backlog_s = limits.max_backlog_s
        self._min_endpoint_ms = limits.min_endpoint_ms
        self._step_s = config.step_samples / config.sample_rate
        rules = _rules(options, limits)
        speech = [VoiceActivity(window_samples, config.sample_rate) if window_samples else None for _ in self._indices]
        self.supports_keyterms = decoder.supports_bias
        self.keyterms = options.keyterms
        self._changes = ChangeAllowance()
        bias = options.keyterms.bias
        self.channels = tuple(Segmenter(i, config, decoder, rules, bias=bias, speech=speech[i]) for i in self._indices)
        # The state of a voice-activity model is not saved, so a stream that has one cannot be resumed.
        resumable = options.resumable and not window_samples
        behind_s = MARGIN_S if resumable and options.streams > 1 else 0.0  # the order among channels is to be the same
        rate = options.sample_rate
        self._cutters = tuple(StepCutter(i, rate, config, window_samples, behind_s=behind_s) for i in self._indices)
        self._held = tuple(HeldSteps() for _ in self._indices)
        self._opened: list[OpenFinal] = []  # until `take_opened`
        self._waiting = 0  # steps sent whose results are not out, over all channels
        self.steps = 0  # answered
        self._closing: CloseReason | None = None
        self._result_order = ResultOrder(options.streams) if resumable else None
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
        """Audio sent to the engine whose results are not out, per channel."""
        return self._waiting * self._step_s / len(self.channels)

    def replace_phrases(self, phrases: Sequence[str]) -> None:
        """Bias the audio that follows towards other phrases, and the same keywords.

        Raises: KeytermsTooOften; BiasError for too many phrases. The old ones stay then.
        """
        if any(cutter.replaying for cutter in self._cutters):
            return  # the saved state contains this change, or a later one
        self._changes.spend(checked_size(phrases, self.keyterms.keywords), self.audio_s)
        self.set_keyterms(self.keyterms.replaced(phrases))

    def set_keyterms(self, keyterms: Keyterms) -> None:
        """Bias the audio that follows, on all channels; audio received before keeps the old terms."""
        self.keyterms = keyterms
        for channel in self.channels:
            channel.set_bias(keyterms.bias)

    def set_endpointing(self, silence_ms: float) -> None:
        """End utterances of the audio that follows after `silence_ms`, or the operator's minimum. Not if resumable."""
        assert not self.resumable, "it is not saved"
        for channel in self.channels:
            channel.set_endpoint(max(silence_ms, self._min_endpoint_ms) / 1_000)

    def release(self) -> None:
        """Release the decoder states. Once, when nothing is decoded any more."""
        for channel in self.channels:
            channel.release()

    @property
    def closing(self) -> bool:
        """True once `close` was called; audio is ignored from then on."""
        return self._closing is not None

    def samples(self, samples: PCM, now: float) -> list[Work]:
        """Take decoded audio, (S, C) int16. Raises: BacklogExceeded."""
        if self._closing is not None or not len(samples):
            return []
        if self.backlog_s + len(samples) / self.options.sample_rate > self._max_backlog_s:
            raise BacklogExceeded(f"more than {self._max_backlog_s:g} s of audio unanswered")
        if self.options.multichannel:
            alone = [np.ascontiguousarray(samples[:, i]) for i in self._indices]  # (S,): a step's samples lie together
            work = [w for i in self._indices for w in self._cutters[i].cut(alone[i], now)]
            if self._result_order is not None:  # the same order however the audio is cut into messages
                work.sort(key=lambda piece: piece.tag.end_sample)
        else:
            work = self._cutters[0].cut(downmix(samples), now)
        self._count(work)
        return work

    def finalize(self, channel: int | None, now: float) -> tuple[list[Work], list[Event]]:
        """Flush one channel, or all (None); return the work and the events that need no step."""
        indices = self._indices if channel is None else range(channel, channel + 1)
        return self._flush(indices, Marker.FINALIZE, FinalReason.FINALIZE, now)

    def close(self, reason: CloseReason, now: float) -> tuple[list[Work], list[Event]]:
        """Flush everything and end. An empty last final is sent only to a client that asked for the end."""
        if self._closing is not None:
            return [], []
        self._closing = reason
        by_client = reason is CloseReason.CLOSE_STREAM
        for channel in self.channels:
            channel.close(Closing.WITH_FINAL if by_client else Closing.WITH_TEXT_ONLY)
        work, events = self._flush(self._indices, Marker.CLOSE, FinalReason.CLOSE, now)
        return work, self._with_end(events)

    # Resumable streams

    @property
    def untouched(self) -> bool:
        """True before the first audio and the first change of settings."""
        return self.audio_s == 0 and self.keyterms is self.options.keyterms and not self.closing

    @property
    def resumable(self) -> bool:
        """Whether its state can be saved and restored."""
        return self._result_order is not None

    @property
    def result_order(self) -> ResultOrder:
        """The order of the results; of a resumable session."""
        assert self._result_order is not None
        return self._result_order

    def unmarked_s(self) -> float:
        """Audio sent to the engine since the last mark, per channel."""
        return self._unmarked * self._step_s / len(self.channels)

    def mark(self) -> None:
        """Begin to save the state behind all steps so far; `exported` takes the engine's state of each channel."""
        phrases = None if self.keyterms is self.options.keyterms else self.keyterms.phrases
        cutters = tuple(cutter.saved() for cutter in self._cutters)
        self.result_order.mark(SavedInput(cutters, phrases, self._changes.saved()))
        self._unmarked = 0

    def exported(self, channel: Segmenter, state: bytes) -> list[Event]:
        """Take the engine's state of one channel, decoded up to there; return the events whose turn has come."""
        saved = channel.saved(self.options.keyterms.bias)
        return self._with_end(self.result_order.exported(channel.index, state, saved))

    def released(self) -> list[Event]:
        """Return the events that waited for `result_order.take_saved`."""
        return self._with_end(self.result_order.due())

    def replay_from_s(self, saved: SavedInput) -> float:
        """Stream time from which the client must send its audio again."""
        return self._replay_from(saved) / self.options.sample_rate

    def _replay_from(self, saved: SavedInput) -> int:
        places = zip(self._cutters, saved.cutters, strict=True)
        return min(cutter.replay_from(place) for cutter, place in places)

    def restoring(self, saved: SavedStream) -> Callable[[], None]:
        """Return a function that makes this untouched session go on from a saved one, with the audio from `audio_s` on.

        The caller restores the model's states. Raises: ValueError, ModelError.
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
            self.result_order.finals = saved.finals
            for cutter, place in zip(self._cutters, saved.audio.cutters, strict=True):
                cutter.restore(place, begin)
            for (channel, one), (state, bias) in zip(paired, states, strict=True):
                channel.restore(one, state, bias)

        return go_on

    def start_at(self, stream_s: float, finals: int) -> None:
        """Let the stream time of an untouched session begin at `stream_s`, to the sample, behind `finals` finals."""
        sample = int(stream_s * self.options.sample_rate + 0.5)
        if self._result_order is not None:
            self._result_order.finals = finals
        for cutter, channel in zip(self._cutters, self.channels, strict=True):
            cutter.start_at(sample)
            channel.start_at(cutter.received_s)

    def decoded(self, channel: Segmenter, tag: StepTag) -> list[Event]:
        """Return the events of one step's result; the channel's decoder state has been advanced over it.

        An open final and what follows it on its channel wait for `settle`, after a second decode by the caller.
        """
        self.steps += 1
        results = channel.decoded(tag)
        held, opened = self._held[channel.index], open_finals(results)
        if opened or held.waiting:
            held.hold(results, is_step=True)
            self._opened += opened
            return []
        self._waiting -= 1
        events = held.told(results)
        if self._result_order is not None:
            events = self._result_order.answered(channel.index, events)
        return events if self._closing is None else self._with_end(events)

    @property
    def holds(self) -> bool:
        """Whether results wait for a second decode."""
        return any(held.waiting for held in self._held)

    def take_opened(self) -> list[OpenFinal]:
        """Return the finals that are to be decoded again, once."""
        opened, self._opened = self._opened, []
        return opened

    def timed(self, channel: Segmenter, timing: StepTiming) -> None:
        """Give the step that was decoded last its timing, if its results wait."""
        self._held[channel.index].timed(timing)

    def settle(self, final: OpenFinal, words: tuple[Word, ...] | None) -> list[tuple[list[Event], StepTiming | None]]:
        """Take what a second decode found, None if it failed; return the events that waited, step by step."""
        final.settle(words)
        index = final.first.channel
        answers: list[tuple[list[Event], StepTiming | None]] = []
        for held, told in self._held[index].due():
            events = told
            if held.is_step:
                self._waiting -= 1
                if self._result_order is not None:
                    events = self._result_order.answered(index, told)
            answers.append((events, held.timing))
        if answers:
            self._with_end(answers[-1][0])
        return answers

    def _flush(self, indices: range, marker: Marker, reason: FinalReason, now: float) -> tuple[list[Work], list[Event]]:
        work: list[Work] = []
        events: list[Event] = []
        for i in indices:
            channel, cutter = self.channels[i], self._cutters[i]
            if marker is Marker.FINALIZE and cutter.replaying:
                continue  # answered before the state was saved
            if not cutter.fresh:
                channel.flushing()
                work += cutter.flush(marker, now)
            elif self._result_order is None:
                events += self._behind(i, channel.nothing_to_flush(reason))
            else:  # `_result_order` puts it behind the steps on their way
                events += channel.empty_final(cutter.received_s, reason)
        if self._result_order is not None:
            work.sort(key=_audio_first)  # as they come without a flush, whatever a resampler held back
        self._count(work)
        return work, events if self._result_order is None else self._result_order.add(events)

    def _behind(self, index: int, events: list[Event]) -> list[Event]:
        """Return events of a channel that answer no step, unless they wait behind an open final."""
        held = self._held[index]
        if not events or not held.waiting:
            return events
        held.hold(events, is_step=False)
        return []

    def _count(self, work: list[Work]) -> None:
        for piece in work:
            if isinstance(piece.tag, StepTag):
                self._waiting += 1
                self.channels[piece.channel].sent(piece.pcm)
                if self._result_order is not None:
                    self._unmarked += 1
                    self._result_order.sent(piece.channel)

    def _with_end(self, events: list[Event]) -> list[Event]:
        if self._closing is not None and all(channel.closed for channel in self.channels) and not self.holds:
            if self._result_order is not None and not self._result_order.finishes():
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


def _audio_first(piece: Work) -> tuple[bool, int]:
    """Key that puts steps of audio in the order of the audio, and the flushes of all channels behind them."""
    flush = isinstance(piece.tag, StepTag) and piece.tag.marker is not Marker.AUDIO
    return flush, 0 if flush else piece.tag.end_sample
