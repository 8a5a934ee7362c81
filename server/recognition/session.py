"""Sans-I/O session of one connection: cuts audio into steps per channel, and turns step results into ordered events."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, overload

from model.ctc.interface import Decoder, TwoPass
from model.description import ModelDescription
from server.audio.pcm import MARGIN_S, PCM
from server.errors import BacklogExceeded, CloseReason
from server.recognition.audio_digest import AudioDigest
from server.recognition.events import Closed, Event, Final, FinalReason
from server.recognition.keyterms.session_keyterms import SessionKeyterms
from server.recognition.messages import (
    AskInPauses,
    ChooseLanguage,
    Command,
    EndOfAudio,
    Endpoint,
    Flushing,
    FlushText,
    Message,
    ReleaseStates,
    RewindFinals,
    Samples,
    StartAt,
    StateSaved,
    StepDecoded,
    TicketTaken,
    Waited,
)
from server.recognition.results.masked import masked, masked_recording
from server.recognition.results.pending_finals import PendingFinals, marked
from server.recognition.results.result_order import (
    AudioOrder,
    ImmediateOrder,
    OpenSpeech,
    ResultOrder,
    SpokenOrder,
    Unanswered,
)
from server.recognition.resumption import Resumption
from server.recognition.segments.endpointing import VoiceActivity, VoiceRules
from server.recognition.segments.pauses import PauseQuestions, Pauses
from server.recognition.segments.resting import Rest, Rests
from server.recognition.segments.segmenter import Closing, Segmenter, listened, other_words, speakers_by
from server.recognition.segments.speaker_rules import SPEAKER_WINDOW
from server.recognition.session_options import Limits, SessionOptions, endpoint_rules
from server.recognition.steps import AudioInput, Auxiliary, Marker, StepCutter, StepTag, Work
from server.text.redaction import Redactor


class Session:
    """The channels of one connection: cuts their audio into steps, and turns results into ordered events.

    What a stream did not ask for has no stage and takes no message in it.
    """

    def __init__(
        self,
        options: SessionOptions,
        config: ModelDescription,
        decoder: Decoder,
        limits: Limits,
        voice: VoiceRules | None = None,  # None: no voice-activity model
    ) -> None:
        self.options = options
        self._max_backlog_s, self._min_endpoint_ms = limits.max_backlog_s, limits.min_endpoint_ms
        self._step_s = config.step_samples / config.sample_rate
        self.channels = _channels(options, config, decoder, limits, voice)
        margin_s = MARGIN_S if options.resumable and options.streams > 1 else 0.0  # gives the same order in every run
        rate = options.sample_rate
        windows = {Auxiliary.VAD: voice.window_samples} if voice else {}
        windows |= {Auxiliary.SPEAKERS: SPEAKER_WINDOW} if options.speakers else {}
        cutters = tuple(StepCutter(i, rate, config, windows, margin_s=margin_s) for i in range(options.streams))
        self.audio = AudioInput(cutters, multichannel=options.multichannel, waits=not options.resumable)
        self.keyterms = SessionKeyterms(options.keyterms, self.channels, self.audio, decoder, self._step_s)
        self.resumption: Resumption | None = None  # of a resumable stream
        self.pending: PendingFinals | None = None  # for a decoder with a second pass, or a stream that is forked
        self._unanswered = Unanswered()
        self._order: ResultOrder | PendingFinals = ImmediateOrder()
        # Functions, not bound methods: a session that refers to itself is collected late.
        self._takes: dict[type, Callable[[Session, Any], list[Any]]] = {
            Samples: Session._samples,
            FlushText: Session._finalize,
            EndOfAudio: Session._end,
            StepDecoded: Session._decoded,
            AskInPauses: Session._ask_in_pauses,
            StartAt: Session._start_at,
            ReleaseStates: Session._release,
        }
        self._on_samples: list[Callable[[PCM], None]] = []
        self._on_step: list[Callable[[Work, float], Work]] = []  # sent, with the silence after it
        self._on_results: list[Callable[[StepDecoded, list[Any]], list[Any]]] = []
        self._on_events: list[Callable[[Session, list[Event]], list[Event]]] = []
        self._digest = AudioDigest(options.channels, options.streams, rate) if options.receipts else None
        if self._digest is not None:
            self._on_samples.append(self._digest.receive)
            self._on_results.append(partial(_marked, self._digest))
        if options.resumable:
            self._resume_later()
        else:
            self._takes |= {Endpoint: Session._set_endpoint, ChooseLanguage: Session._choose_language}
        self._choose_language(ChooseLanguage(options.language))
        if options.rewind_s:
            self._takes[RewindFinals] = Session._rewind
        self._redactor = Redactor(options.redact, options.streams, options.number_language) if options.redact else None
        self._finals_at_end: list[Final] = []
        self._change_words()
        if options.spoken_order and options.streams > 1:
            spoken = SpokenOrder(options.streams)
            self._on_events.append(lambda session, events: spoken.take(events, speech=session._open_speech))
        self._pauses: Pauses | None = None
        if options.fork_after_s is not None and options.streams == 1:
            self._find_pauses(Pauses(options.fork_after_s if options.forks else math.inf))
        self._on_work: list[Callable[[list[Work]], None]] = []
        if isinstance(decoder, TwoPass) or (self._pauses is not None and options.forks):
            self.pending = PendingFinals(options.streams, self._order, self._unanswered)
            if self.resumption is not None:
                self.resumption.pending = self.pending
        self._order_results()
        self.rests: Rests | None = None  # None: the stream never rests
        if limits.rest_s is not None and not options.speakers:  # vectors of voices are those of all audio
            self._rest_after(limits.rest_s, config)

    def _order_results(self) -> None:
        if self.pending is not None:
            self._order = self.pending
            self._takes[Waited] = lambda session, message: session._due(message.events)
        if not isinstance(order := self._order, ImmediateOrder):
            self._on_work.append(order.send)
            self._on_results.append(lambda message, results: order.answered(message.channel, results))

    def _change_words(self) -> None:
        """Add the stages that leave out or mask words."""
        speakers = self.options.speakers
        if speakers is not None and speakers.listens and not speakers.at_end:
            alone = speakers.alone
            self._on_events.append(lambda session, events: listened(session.channels, events, alone=alone))
        if self._redactor is not None:
            self._on_events.append(Session._hold if self.options.finals_at_end else Session._mask)

    def _resume_later(self) -> None:
        self._order = order = AudioOrder(self.options.streams)
        rate, cutters = self.options.sample_rate, self.audio.cutters
        self.resumption = Resumption(
            self.channels, cutters, self.keyterms, order, sample_rate=rate, step_s=self._step_s, digest=self._digest
        )
        self._takes |= {StateSaved: Session._state_saved, TicketTaken: Session._ticket_taken}

    def _rest_after(self, after_s: float, config: ModelDescription) -> None:
        self.rests = rests = Rests([Rest(channel, config, after_s) for channel in self.channels])
        for cutter, rest in zip(self.audio.cutters, rests.channels, strict=True):
            cutter.kept = rest.last
        self._takes[StepDecoded] = Session._decoded_or_replayed
        if self.resumption is not None:
            self.resumption.rests = rests.channels

    def _find_pauses(self, pauses: Pauses) -> None:
        self._pauses = pauses
        cutter = self.audio.cutters[0]
        self._on_step.append(lambda step, silence_s: pauses.sent(step, silence_s, cutter))
        self._on_results.append(lambda _, results: pauses.answered(results))

    @overload
    def take(self, message: Samples) -> list[Work]: ...

    @overload
    def take(self, message: Flushing) -> list[Work | Event]: ...

    @overload
    def take(self, message: Command) -> list[Event]: ...

    def take(self, message: Message) -> list[Any]:
        """Take a message; return the events that are due, after the work that it makes for the engines."""
        return self._takes[type(message)](self, message)

    @property
    def backlog_s(self) -> float:
        """Audio sent to the engine whose results were not returned yet, per channel."""
        return self._unanswered.steps * self._step_s / len(self.channels)

    # Of the client

    def _samples(self, message: Samples) -> list[Work]:
        samples = message.pcm
        if not len(samples):
            return []
        if self.backlog_s + len(samples) / self.options.sample_rate > self._max_backlog_s:
            raise BacklogExceeded(f"more than {self._max_backlog_s:g} s of audio unanswered")
        for receive in self._on_samples:
            receive(samples)
        work = self.audio.cut(samples, message.arrived_s, message.channel)
        if work:
            silences_s = self._send(work)
            if self.rests is not None:
                self.rests.unsent_events += self.rests.sent(work, silences_s, self._rested)
        return work

    def _finalize(self, message: FlushText) -> list[Work | Event]:
        channels = self.channels if message.channel is None else (self.channels[message.channel],)
        return self._flush(channels, Marker.FINALIZE, FinalReason.FINALIZE, message.arrived_s)

    def _end(self, message: EndOfAudio) -> list[Work | Event]:
        by_client = message.reason is CloseReason.CLOSE_STREAM
        for channel in self.channels:
            channel.close(Closing.WITH_FINAL if by_client else Closing.WITH_TEXT_ONLY)
        self._on_events.append(lambda session, events: session._with_end(message.reason, events))
        self._takes |= dict.fromkeys((Samples, EndOfAudio), lambda _session, _message: [])
        return self._flush(self.channels, Marker.CLOSE, FinalReason.CLOSE, message.arrived_s)

    def _set_endpoint(self, message: Endpoint) -> list[Event]:
        for channel in self.channels:
            channel.set_endpoint(max(message.silence_ms, self._min_endpoint_ms) / 1_000, message.scored)
        if message.fork_after_s is not None and self._pauses is not None and self.options.forks:
            self._pauses.fork_after_s = message.fork_after_s
        return []

    def _choose_language(self, message: ChooseLanguage) -> list[Event]:
        if self.options.prompts is not None:
            for cutter in self.audio.cutters:
                cutter.prompt = self.options.prompts.choice(message.language)
        return []

    def _rewind(self, message: RewindFinals) -> list[Event]:
        assert 0 < message.seconds <= self.options.rewind_s, "checked by the protocol"
        bias = self.keyterms.bias_for_rewind(message.phrases, message.seconds)
        channels = self.channels if message.channel is None else (self.channels[message.channel],)
        corrections = [event for channel in channels for event in channel.rewind(message.seconds, bias)]
        return self._due(self._order.add(corrections))

    def _start_at(self, message: StartAt) -> list[Event]:
        sample = int(message.stream_s * self.options.sample_rate + 0.5)
        if self.resumption is not None:
            self.resumption.order.finals = message.finals
        if self._digest is not None:
            self._digest.start_at(sample)
        for cutter, channel in zip(self.audio.cutters, self.channels, strict=True):
            cutter.start_at(sample)
            channel.segment.start_at(cutter.received_s)
        return []

    # Of its owner and its engines

    def _ask_in_pauses(self, message: AskInPauses) -> list[Event]:
        questions = tuple(PauseQuestions(channel.settings, message.ask) for channel in self.channels)
        self._on_step.append(partial(_asked, questions))
        return []

    def _release(self, _: ReleaseStates) -> list[Event]:
        for channel in self.channels:
            channel.segment.release()
        return []

    def _decoded(self, message: StepDecoded) -> list[Event]:
        self._unanswered.steps -= 1
        events: list[Any] = self.channels[message.channel].decoded(message.tag)
        for stage in self._on_results:
            events = stage(message, events)
        for change in self._on_events:
            events = change(self, events)
        return events

    def _state_saved(self, message: StateSaved) -> list[Event]:
        assert self.resumption is not None, "only what was marked is exported"
        self.resumption.exported(self.channels[message.channel], message.state, message.auxiliary)
        events = self._due(self._order.add([]))
        return events if self.rests is None else events + self.rests.due(message.channel, self._rested)

    def _rested(self, channel: int, tag: StepTag) -> list[Event]:
        return self._decoded(StepDecoded(channel, tag))

    def _decoded_or_replayed(self, message: StepDecoded) -> list[Event]:
        if message.tag.marker is Marker.REPLAY:
            self.channels[message.channel].segment.replayed()
            return []
        assert self.rests is not None, "only then"
        return self._decoded(message) + self.rests.due(message.channel, self._rested)

    def _ticket_taken(self, _: TicketTaken) -> list[Event]:
        return self._due(self._order.add([]))

    # The stages

    def _due(self, events: list[Event]) -> list[Event]:
        """Return events in the form in which the session outputs them: numbers masked if required, finals in order."""
        for stage in self._on_events:
            events = stage(self, events)
        return events

    def _flush(
        self, channels: Sequence[Segmenter], marker: Marker, reason: FinalReason, now: float
    ) -> list[Work | Event]:
        """Return the work of a flush, and the events that belong to no step."""
        work: list[Work] = []
        events: list[Event] = []
        for channel in channels:
            cutter = self.audio.cutters[channel.index]
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
            events += self._order.unasked(channel.index, empty)
        silences_s = self._send(work)
        events = self._due(self._order.add(events))
        if self.rests is not None:
            events += self.rests.sent(work, silences_s, self._rested)
        return [*work, *events]

    def _open_speech(self, index: int) -> OpenSpeech:
        channel, pending_s = self.channels[index], math.inf
        if self.pending is not None:
            pending_s = self.pending.first_word_s(index)
        return OpenSpeech(min(channel.segment.first_word_s, pending_s), channel.decoded_s)

    def _send(self, work: list[Work]) -> list[float]:
        """Record work in the order in which it is sent; mark the steps after which the stream is forked.

        Returns: the silence after each step, 0 before the fork of its pause.
        """
        silences_s: list[float] = []
        for order in self._on_work:
            order(work)
        for number, piece in enumerate(work):
            if isinstance(piece.tag, StepTag):
                self._unanswered.steps += 1
                silence_s = self.channels[piece.channel].sent(piece.pcm, piece.tag.marker)
                for stage in self._on_step:
                    work[number] = stage(work[number], silence_s)
                fork_follows = self._pauses is not None and self._pauses.spoken
                silences_s.append(0.0 if fork_follows else silence_s)
        if self.keyterms.current.context:
            self.keyterms.sent()
        return silences_s

    def _mask(self, events: list[Event]) -> list[Event]:
        assert self._redactor is not None
        return [masked(event, self._redactor) for event in events]

    def _hold(self, events: list[Event]) -> list[Event]:
        self._finals_at_end += [event for event in events if isinstance(event, Final)]
        return [event for event in events if not isinstance(event, Final)]

    def _with_end(self, reason: CloseReason, events: list[Event]) -> list[Event]:
        if all(channel.closed for channel in self.channels) and self._order.finishes():
            mark = None if self._digest is None else self._digest.mark()
            if self._redactor is not None and self._finals_at_end:
                events += masked_recording(self._finals_at_end, self._redactor)
            events.append(Closed(reason, self.audio.received_s, mark, other_words(self.channels)))
        return events


def _channels(
    options: SessionOptions, config: ModelDescription, decoder: Decoder, limits: Limits, voice: VoiceRules | None
) -> tuple[Segmenter, ...]:
    rules = endpoint_rules(options, limits, config.delay_frames * config.frame_s)
    return tuple([
        Segmenter(
            index,
            config,
            decoder,
            rules,
            bias=options.keyterms.bias,
            speech=VoiceActivity(voice, config.sample_rate) if voice else None,
            speakers=None if options.speakers is None else speakers_by(options.speakers),
        )
        for index in range(options.streams)
    ])  # fmt: skip


def _marked(digest: AudioDigest, message: StepDecoded, results: list[Any]) -> list[Any]:
    digest.answered(message.channel, message.tag.end_s)
    return marked(results, partial(digest.mark, message.tag.end_s)) if results else results


def _asked(questions: Sequence[PauseQuestions], step: Work, silence_s: float) -> Work:
    if isinstance(step.tag, StepTag) and step.tag.marker is Marker.AUDIO:
        questions[step.channel].sent(step.pcm, silence_s)
    return step
