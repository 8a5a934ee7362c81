"""Sans-I/O session of one connection: cuts audio into steps per channel, and turns step results into ordered events."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from model.ctc.interface import Decoder, TwoPass
from model.ctc.words import Word
from model.description import ModelDescription
from server.audio.pcm import MARGIN_S, PCM, downmix
from server.errors import BacklogExceeded, CloseReason
from server.recognition.audio_digest import AudioDigest
from server.recognition.events import Closed, Event, Final, FinalReason, ForkWords, Partial, StepTiming
from server.recognition.keyterms.session_keyterms import SessionKeyterms
from server.recognition.results.pending_finals import PendingFinal, PendingFinals, PendingFork, marked
from server.recognition.results.result_order import AudioOrder, ImmediateOrder, ResultOrder
from server.recognition.results.spoken_order import OpenSpeech, SpokenOrder
from server.recognition.resumption import Resumption
from server.recognition.segments.endpointing import ScoredEnd, VoiceActivity, VoiceRules
from server.recognition.segments.pause_questions import Ask, PauseQuestions
from server.recognition.segments.pauses import Pauses
from server.recognition.segments.segmenter import Closing, Segmenter
from server.recognition.session_options import Limits, SessionOptions, endpoint_rules
from server.recognition.steps import Marker, StepCutter, StepTag, Work
from server.text.redaction import Redactor


class Session:
    """The channels of one connection: cuts their audio into steps, and turns results into ordered events."""

    def __init__(
        self,
        options: SessionOptions,
        config: ModelDescription,
        decoder: Decoder,
        limits: Limits,
        voice: VoiceRules | None = None,  # None: no voice-activity model
    ) -> None:
        self.options = options
        self._max_backlog_s = limits.max_backlog_s
        self._min_endpoint_ms = limits.min_endpoint_ms
        self._step_s = config.step_samples / config.sample_rate
        rules = endpoint_rules(options, limits, config.delay_frames * config.frame_s)
        speech = [VoiceActivity(voice, config.sample_rate) if voice else None for _ in self._indices]
        self.supports_keyterms = decoder.supports_bias
        bias = options.keyterms.bias
        self.channels = tuple(Segmenter(i, config, decoder, rules, bias=bias, speech=speech[i]) for i in self._indices)
        margin_s = MARGIN_S if options.resumable and options.streams > 1 else 0.0  # gives the same order in every run
        rate, window_samples = options.sample_rate, None if voice is None else voice.window_samples
        self._cutters = tuple(StepCutter(i, rate, config, window_samples, margin_s=margin_s) for i in self._indices)
        self.keyterms = SessionKeyterms(options.keyterms, self.channels, self._cutters, decoder, self._step_s)
        self._digest = AudioDigest(options.channels, options.streams, rate) if options.receipts else None
        self.steps = 0  # answered
        self._closing: CloseReason | None = None
        self._order: ResultOrder = ImmediateOrder()
        self.resumption: Resumption | None = None
        if options.resumable:
            self._order = order = AudioOrder(options.streams)
            self.resumption = self._resumption_of(order)
        self._redactor: Redactor | None = None
        if options.redact:
            self._redactor = Redactor(options.redact, options.streams, options.number_language)
        self._finals_at_end: list[Final] = []
        self._questions: tuple[PauseQuestions, ...] = ()  # to a turn model, by channel
        self._spoken = SpokenOrder(options.streams) if options.spoken_order and options.streams > 1 else None
        self._pauses: Pauses | None = None
        if options.fork_after_s is not None and options.streams == 1:
            self._pauses = Pauses(options.fork_after_s if options.forks else math.inf)
        self.second_pass = isinstance(decoder, TwoPass)
        self.pending: PendingFinals | None = None  # for a decoder with a second pass, or a stream that is forked
        if self.second_pass or (self._pauses is not None and options.forks):
            self._order = self.pending = PendingFinals(options.streams, self._order)

    def _resumption_of(self, order: AudioOrder) -> Resumption:
        return Resumption(
            self.channels,
            self._cutters,
            self.keyterms,
            order,
            sample_rate=self.options.sample_rate,
            step_s=self._step_s,
            digest=self._digest,
        )

    @property
    def _indices(self) -> range:
        return range(self.options.streams)

    @property
    def audio_s(self) -> float:
        """Stream time: the audio received."""
        return max([cutter.received_s for cutter in self._cutters])

    @property
    def audio_by_channel_s(self) -> tuple[float, ...]:
        """The audio received on each recognized channel."""
        return tuple([cutter.received_s for cutter in self._cutters])

    @property
    def backlog_s(self) -> float:
        """Audio sent to the engine whose results were not returned yet, per channel."""
        return self._order.waiting * self._step_s / len(self.channels)

    def rewind(self, seconds: float, phrases: Sequence[str], channel: int | None = None) -> list[Event]:
        """Decode the finals of the last seconds again, with further key terms; return the corrections that are due.

        Others follow the results of pending steps. Raises: KeytermsTooOften; BiasError for too many phrases.
        """
        assert 0 < seconds <= self.options.rewind_s, "checked by the protocol"
        bias = self.keyterms.bias_for_rewind(phrases, seconds)
        asked = self.channels if channel is None else (self.channels[channel],)
        return self._shown(self._order.add([event for each in asked for event in each.rewind(seconds, bias)]))

    def set_endpointing(self, silence_ms: float, scored: ScoredEnd | None = None) -> None:
        """End utterances in later audio after `silence_ms`, at least the operator's minimum, or by `scored`.

        Not if resumable.
        """
        assert not self.resumable, "it is not saved"
        for channel in self.channels:
            channel.set_endpoint(max(silence_ms, self._min_endpoint_ms) / 1_000, scored)

    def ask_in_pauses(self, ask: Ask) -> None:
        """Ask a turn model about pauses in later audio."""
        if not self._questions:
            self._questions = tuple(PauseQuestions(channel.settings, ask) for channel in self.channels)

    def set_fork_after(self, silence_s: float) -> None:
        """Set the silence after which the stream is forked in later audio, if it can be forked."""
        if self._pauses is not None and self.options.forks:
            self._pauses.fork_after_s = silence_s

    def release(self) -> None:
        """Release the decoder states. Call once, when nothing is decoded any more."""
        for channel in self.channels:
            channel.segment.release()

    @property
    def closing(self) -> bool:
        """True once `close` was called; audio is ignored from then on."""
        return self._closing is not None

    @property
    def samples_to_step(self) -> int:
        """Samples per channel that may complete a step; fewer can wait. 0 if no sample can wait."""
        if self._closing is not None or self.resumption is not None:
            return 0
        return min([cutter.samples_to_step for cutter in self._cutters])

    def samples(self, samples: PCM, now: float, channel: int | None = None) -> list[Work]:
        """Take decoded audio, (S, C) int16, or (S, 1) of one channel. Raises: BacklogExceeded."""
        if self._closing is not None or not len(samples):
            return []
        if self.backlog_s + len(samples) / self.options.sample_rate > self._max_backlog_s:
            raise BacklogExceeded(f"more than {self._max_backlog_s:g} s of audio unanswered")
        if self._digest is not None:
            assert channel is None, "audio of one channel alone has no digest"
            self._digest.receive(samples)
        if channel is not None:
            work = self._cutters[channel].cut(samples[:, 0], now)
        elif self.options.multichannel:
            alone = [np.ascontiguousarray(samples[:, i]) for i in self._indices]  # (S,): contiguous samples of a step
            work = [w for i in self._indices for w in self._cutters[i].cut(alone[i], now)]
        else:
            work = self._cutters[0].cut(downmix(samples), now)
        if work:
            self._send(work)
        return work

    def finalize(self, channel: int | None, now: float) -> tuple[list[Work], list[Event]]:
        """Flush one channel, or all (None); return the work, and the events that belong to no step."""
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
        return self.audio_s == 0 and self.keyterms.current is self.options.keyterms and not self.closing

    @property
    def resumable(self) -> bool:
        """Whether its state can be saved and restored."""
        return self.resumption is not None

    @property
    def has_voice(self) -> bool:
        """Whether a voice-activity model takes its windows."""
        return self.channels[0].utterance.speech is not None

    def exported(self, channel: Segmenter, state: bytes, voice: bytes = b"") -> list[Event]:
        """Take the engines' states of one channel, decoded up to a mark; return the events that are due."""
        assert self.resumption is not None, "only what was marked is exported"
        self.resumption.exported(channel, state, voice)
        return self.released()

    def released(self) -> list[Event]:
        """Return the events that are due after a state was exported, or taken by `AudioOrder.take_saved`."""
        return self._with_end(self._order.add([]))

    def start_at(self, stream_s: float, finals: int) -> None:
        """Let the stream time of an untouched session begin at `stream_s`, to the sample, after `finals` finals."""
        sample = int(stream_s * self.options.sample_rate + 0.5)
        if self.resumption is not None:
            self.resumption.order.finals = finals
        if self._digest is not None:
            self._digest.start_at(sample)
        for cutter, channel in zip(self._cutters, self.channels, strict=True):
            cutter.start_at(sample)
            channel.segment.start_at(cutter.received_s)

    # Results

    def decoded(self, channel: Segmenter, tag: StepTag) -> list[Event]:
        """Return the events of one step's result; the channel's decoder state has been advanced over it.

        A final with a second pass, and what follows it on its channel, waits for `resolve`.
        """
        self.steps += 1
        results = channel.decoded(tag)
        if self._digest is not None:
            self._digest.answered(channel.index, tag.end_s)
            results = marked(results, partial(self._digest.mark, tag.end_s)) if results else results
        if self._pauses is not None:
            results = self._pauses.answered(results)
        events = self._shown(self._order.answered(channel.index, results))
        return events if self._closing is None else self._with_end(events)

    def next_fork(self) -> PendingFork:
        """Return the oldest fork that was not returned yet, once the engine has exported the state for it."""
        assert self._pauses is not None, "only a stream with pauses is forked"
        return self._pauses.next_fork()

    def resolve(
        self, final: PendingFinal, words: tuple[Word, ...] | None
    ) -> list[tuple[list[Event], StepTiming | None]]:
        """Take the words of a second pass, None if it failed; return the events that waited, step by step."""
        assert self.pending is not None, "its final came from here"
        return self._resolved(self.pending.resolve(final, words))

    def resolve_fork(self, fork: PendingFork, found: ForkWords | None) -> list[tuple[list[Event], StepTiming | None]]:
        """Take a fork's words, None if it was refused or failed; return the events that waited, step by step."""
        assert self.pending is not None, "its place came from here"
        return self._resolved(self.pending.resolve_fork(fork, found))

    def _resolved(
        self, due: Iterable[tuple[list[Event], StepTiming | None]]
    ) -> list[tuple[list[Event], StepTiming | None]]:
        answers = [(self._shown(events), timing) for events, timing in due]
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
                continue
            by_audio = self._order.by_audio
            empty = channel.empty_final(cutter.received_s, reason) if by_audio else channel.nothing_to_flush(reason)
            if self._digest is not None:
                empty = marked(empty, self._digest.mark)
            events += self._order.unasked(i, empty)
        self._send(work)
        return work, self._shown(self._order.add(events))

    def _shown(self, events: list[Event]) -> list[Event]:
        """Return events in the form in which the session outputs them: numbers masked if required, finals in order."""
        if self._redactor is not None and self.options.finals_at_end:
            self._finals_at_end += [event for event in events if isinstance(event, Final)]
            events = [event for event in events if not isinstance(event, Final)]
        elif self._redactor is not None:
            events = [_redacted(event, self._redactor) for event in events]
        return events if self._spoken is None else self._spoken.take(events, self._open_speech)

    def _open_speech(self, index: int) -> OpenSpeech:
        channel, pending_s = self.channels[index], math.inf
        if self.pending is not None:
            pending_s = self.pending.first_word_s(index)
        return OpenSpeech(min(channel.segment.first_word_s, pending_s), channel.decoded_s)

    def _send(self, work: list[Work]) -> None:
        """Record work in the order in which it is sent; mark the steps after which the stream is forked."""
        self._order.send(work)
        for number, piece in enumerate(work):
            if isinstance(piece.tag, StepTag):
                silence_s = self.channels[piece.channel].sent(piece.pcm, piece.tag.marker)
                if self._questions and piece.tag.marker is Marker.AUDIO:
                    self._questions[piece.channel].sent(piece.pcm, silence_s)
                if self._pauses is not None:
                    work[number] = self._pauses.sent(piece, silence_s, self._cutters[0])
        self.keyterms.sent()

    def _with_end(self, events: list[Event]) -> list[Event]:
        if self._closing is not None and all(channel.closed for channel in self.channels) and self._order.finishes():
            mark = None if self._digest is None else self._digest.mark()
            if self._redactor is not None and self.options.finals_at_end:
                events += _redacted_recording(self._finals_at_end, self._redactor)
            events.append(Closed(self._closing, self.audio_s, mark))
        return events


def _redacted(event: Event, redactor: Redactor) -> Event:
    """Return an event with its words masked; the words from the first masked one on are not stable."""
    match event:
        case Partial():
            words, shown = redactor.partial(event.channel, event.words)
            stable = min(event.stable_words, shown)
            return Partial(event.channel, event.start_s, event.duration_s, words, stable)
        case Final():
            return replace(event, words=redactor.final(event.channel, event.words))
    return event


def _redacted_recording(finals: list[Final], redactor: Redactor) -> list[Final]:
    """Return all finals of a recording with their words masked."""
    shown = redactor.recording([(final.channel, final.words) for final in finals])
    return [replace(final, words=words) for final, words in zip(finals, shown, strict=True)]
