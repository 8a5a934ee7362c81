"""Segmentation of one channel: decoder text in; partials, finals, endpoints and flushes out. No clock, no I/O."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from copy import copy
from enum import Enum, auto
from typing import TYPE_CHECKING

from model.ctc.bias import NO_BIAS, Bias
from model.ctc.interface import Decoder, DecoderState, SavesStates
from model.ctc.rewind import RewindDecoder
from model.description import ModelDescription
from server.audio.pcm import PCM
from server.recognition.events import Correction, Event, Final, FinalReason, Partial, TurnAnswered
from server.recognition.results.pending_finals import PendingFinal, Result
from server.recognition.saved_state import SavedChannel
from server.recognition.segments.channel_settings import SettingsByStep
from server.recognition.segments.endpointing import OVERTIME_S, EndpointRules, ScoredEnd, VoiceActivity
from server.recognition.segments.open_segment import OpenSegment
from server.recognition.segments.pauses import LevelMeter
from server.recognition.segments.rewinding import Rewind, Rewinding
from server.recognition.segments.speaker_rules import SpeakerRules, others_in, without_others
from server.recognition.segments.utterance import Utterance
from server.recognition.steps import Auxiliary, Marker, StepTag

if TYPE_CHECKING:
    from server.recognition.segments.speakers import Speakers

PAUSE_S = 0.3  # silence in which no word is unfinished, so a segment that is too long is cut after all of its words


class Closing(Enum):
    """How a channel ends; it is closed once no flush is pending."""

    NO = auto()
    WITH_FINAL = auto()  # the client asked for the end: the last final is sent even if it is empty
    WITH_TEXT_ONLY = auto()  # the server ends the stream: an empty last final is left out


class Segmenter:
    """One recognized channel: its open segment, its open utterance, its settings, and the order of its results."""

    def __init__(
        self,
        index: int,
        config: ModelDescription,
        decoder: Decoder,
        rules: EndpointRules,
        *,
        bias: Bias,
        speech: VoiceActivity | None = None,
        speakers: Speakers | None = None,
    ) -> None:
        self.index = index
        self.settings = SettingsByStep(bias, rules)
        self.segment = OpenSegment(index, config, decoder, rules, bias)
        self.utterance = Utterance(index, speech)
        self.speakers = speakers
        both = {Auxiliary.VAD: speech, Auxiliary.SPEAKERS: speakers}
        self.followed: Mapping[Auxiliary, VoiceActivity | Speakers] = {
            model: one for model, one in both.items() if one is not None
        }
        """By auxiliary model of this channel, what takes its results."""
        self.meter = LevelMeter(config)  # of the audio sent
        self._silences: deque[float] = deque()  # after each step of audio that was not answered
        self._level_s = 0.0  # silence after the step that is being answered
        self._saves = decoder if isinstance(decoder, SavesStates) else None
        self._rewinding = Rewinding(decoder) if isinstance(decoder, RewindDecoder) else None
        self._flushes: deque[list[FinalReason]] = deque()  # pending ones, each with the empty finals after it
        self._closing = Closing.NO
        self.rests = False  # whether it may rest: then `computes` records what is sent to the engine

    @property
    def decoded_s(self) -> float:
        """Stream time up to which words are known; infinity at the end."""
        return math.inf if self.closed else self.segment.known_s

    @property
    def closed(self) -> bool:
        """Whether the last final was returned."""
        return self._closing is not Closing.NO and not self._flushes

    def sent(self, step: PCM, marker: Marker) -> float:
        """Record a step that is sent to the engine; return the silence after it, by the level of the audio."""
        self.settings.steps_sent += 1
        until = self.settings.bias_until
        if until is not None and self.settings.steps_sent == until[0]:
            self.set_bias(until[1])
        if not self.rests:
            self.segment.computes(step)
        if marker is not Marker.AUDIO:
            return self.meter.silence_s
        self._silences.append(silence_s := self.meter.push(step))
        return silence_s

    # Rest

    @property
    def may_rest(self) -> bool:
        """Whether nothing is open that computed silence could change: no text, no voice, no start after a flush."""
        speech, state = self.utterance.speech, self.segment.state
        return state.frames > 0 and not state.has_text and not (speech is not None and speech.speaking)

    # Snapshots and copies

    def saved(self, default: Bias) -> SavedChannel:
        """Return a snapshot, taken between two steps. The bias is omitted if it equals `default`, the query's."""
        assert self._saves is not None, "resumable streams have such a decoder"
        bias, segment, utterance = self.settings.bias, self.segment, self.utterance
        return SavedChannel(
            decoder=self._saves.save(segment.state),
            bias=None if bias == default else bias.phrases,
            partials=segment.partials.saved(),
            base_s=segment.base_s,
            start_s=segment.start_s,
            since_s=segment.since_s,
            cursor_s=segment.cursor_s,
            speaking=utterance.speaking,
            last_word_end_s=utterance.last_word_end_s,
            gate=segment.gate.saved(),
            started_s=utterance.started_s,
            voice=None if utterance.speech is None else utterance.speech.saved(),
            settled=None if segment.settled is None else segment.settled.saved(),
            speakers=None if self.speakers is None else self.speakers.saved(),
            audio=None if segment.audio is None else segment.audio.saved(),
        )

    def restored_state(self, saved: SavedChannel, default: Bias) -> tuple[DecoderState, Bias]:
        """Return the arguments of `restore`, and change nothing. Raises: ValueError, ModelError."""
        assert self._saves is not None, "resumable streams have such a decoder"
        bias = default if saved.bias is None else Bias.of(saved.bias)
        return self._saves.load(saved.decoder, bias), bias

    def restore(self, saved: SavedChannel, state: DecoderState, bias: Bias, known: Sequence[int]) -> None:
        """Continue from a snapshot; the channel must have received no audio.

        `known`: samples in whole windows, by auxiliary model.
        """
        self.segment.restore(saved, state)
        self.utterance.restore(saved)
        if self.speakers is not None and saved.speakers is not None:
            self.speakers.restore(saved.speakers)
        for follower, end_sample in zip(self.followed.values(), known, strict=True):
            follower.known_to(end_sample)
        self.settings.restore(bias)

    def fork(self) -> Segmenter:
        """Return a channel that continues from the last step decoded with one flush: the caller sends its steps.

        Its final has the words that a flush of this channel would return there. Release both segments.
        """
        twin = copy(self)
        twin.segment, twin.utterance, twin.followed = self.segment.fork(), self.utterance.fork(), {}
        twin.speakers = None if self.speakers is None else self.speakers.copy()
        twin.settings, twin._rewinding = self.settings.fork(), None
        twin._flushes, twin._closing = deque([[]]), Closing.WITH_FINAL
        return twin

    # Settings

    def set_bias(self, bias: Bias, steps: int = 0, after: Bias = NO_BIAS) -> None:
        """Bias the words of later steps; steps already sent keep the old bias.

        With `steps`, only for that many steps, and `after` for those that follow.
        """
        self.settings.set_bias(bias, steps, after)
        self._apply_changes()

    def set_endpoint(self, silence_s: float, scored: ScoredEnd | None) -> None:
        """End utterances in later steps after `silence_s`. Not saved, so only for streams that are not resumable."""
        self.settings.set_endpoint(silence_s, scored)
        self._apply_changes()

    def _apply_changes(self) -> None:
        if self.settings.apply():
            self.segment.set_bias(self.settings.bias)

    # Corrections

    def rewind(self, seconds: float, bias: Bias) -> list[Event]:
        """Decode the finals of the last seconds of the audio sent so far again, with these key terms.

        Returns the correction, unless steps are pending: it follows their results. Only for a decoder that can decode
        again.
        """
        assert self._rewinding is not None, "checked by the session"
        asked = Rewind(self.settings.steps_sent, seconds, bias)
        if self.settings.steps_sent == self.settings.steps_answered:
            return [self._corrected(asked)]
        self._rewinding.waiting.append(asked)
        return []

    def _corrected(self, asked: Rewind) -> Correction:
        assert self._rewinding is not None, "only asked for then"
        return self._rewinding.correction(self.index, self.segment.part, self.segment.cursor_s, asked)

    # Flushes and the end

    def flushing(self) -> None:
        """Record that a flush was sent; the answer to a step with its marker will follow."""
        self._flushes.append([])

    def nothing_to_flush(self, reason: FinalReason) -> list[Event]:
        """Answer a flush without audio since the last flush: an empty final, after pending flushes."""
        if self._flushes:
            self._flushes[-1].append(reason)
            return []
        return self.empty_final(self.segment.start_s, reason)

    def empty_final(self, stream_s: float, reason: FinalReason) -> list[Event]:
        """Return an empty final at `stream_s`, or no final if the server began the close."""
        return [] if self._left_out(reason) else [Final(self.index, stream_s, 0.0, (), reason)]

    def close(self, closing: Closing) -> None:
        """End after the pending flushes, or after those that the caller sends next."""
        self._closing = closing

    # Results

    def decoded(self, tag: StepTag) -> list[Result]:
        """Return the results of this step; the decoder state has been advanced over it."""
        settings, segment = self.settings, self.segment
        settings.steps_answered += 1
        segment.answered(tag.end_s)
        events: list[Result] = []
        if settings.answers:
            events += [TurnAnswered(self.index, answer) for answer in settings.due_answers()]
        utterance = self.utterance
        if self.followed:
            self._follow(tag, events)
        if segment.state.has_text and not (utterance.speaking and segment.gate.confident):
            utterance.detect_text(segment, events)
        if tag.marker is Marker.AUDIO:
            self._level_s = self._silences.popleft()
            if settings.rules.utterance_gap_s is None or not self._detect_gap(settings.rules.utterance_gap_s, events):
                self._extend_segment(events)
        elif tag.marker is Marker.FINALIZE:
            self._end_flush(FinalReason.FINALIZE, events)
        elif tag.marker is Marker.CLOSE:
            self._end_flush(FinalReason.CLOSE, events)
        if settings.changes.waiting:
            self._apply_changes()
        while self._rewinding is not None and self._rewinding.due(settings.steps_answered):
            events.append(self._corrected(self._rewinding.waiting.popleft()))
        return events

    def _follow(self, tag: StepTag, events: list[Result]) -> None:
        """Take what auxiliary models found in the audio up to this step."""
        if self.speakers is not None:
            self.speakers.follow(tag.end_sample, tag.end_s)
        if self.utterance.speech is not None:
            self.utterance.detect_voice(self.segment, self.settings.rules, tag.end_sample, events)

    def _detect_gap(self, needed_s: float, events: list[Result]) -> bool:
        """Return whether a gap closed the open segment: it freezes words that no endpoint has frozen."""
        segment = self.segment
        has_text = segment.state.has_text and bool(segment.words())
        freezes = has_text and segment.silence_s >= needed_s and not self._at_endpoint()
        if freezes:
            events.append(self._final(FinalReason.MAX_LEN))
        elif has_text:
            self.utterance.text_follows()
        self.utterance.detect_gap(segment, needed_s, events)
        return freezes

    def _extend_segment(self, events: list[Result]) -> None:
        """Close the segment after silence or because it is too long; send a partial otherwise."""
        rules, segment = self.settings.rules, self.segment
        if segment.state.has_text and self._at_endpoint():
            if self.utterance.speaking or segment.words():
                events.append(self._final(FinalReason.ENDPOINT))
                return
            segment.take(None)  # rejected as noise: the segment continues without it
        has_text = segment.state.has_text
        if not has_text:
            until_s = segment.silent_until_s
            voiceless_s = None if self.utterance.speech is None else self.utterance.voiceless_s
            if rules.ends_silence(until_s - segment.since_s, voiceless_s):
                events.append(self._final(FinalReason.ENDPOINT, until_s=until_s))
                return
        stable = segment.decoder.stable_words(segment.state)
        shown = None if segment.settled is None else segment.settle(segment.settled, stable)
        length_s = segment.cursor_s - segment.since_s
        if length_s >= rules.max_utterance_s:
            paused = has_text and segment.silence_s >= PAUSE_S
            if not has_text or paused or stable or length_s >= rules.max_utterance_s + OVERTIME_S:
                count = None if paused else stable or None
                end_s = None if count is None else segment.cut_until_s(count)
                events.append(self._final(FinalReason.MAX_LEN, count, end_s))
                return
        if (rules.partials or rules.every_step) and (partial := segment.due_partial(rules, stable, shown)) is not None:
            events.append(partial if self.speakers is None else self.speakers.in_partial(partial))

    def _at_endpoint(self) -> bool:
        settings, utterance, rules = self.settings, self.utterance, self.settings.rules
        known_s, level_s, answer = self.segment.silence_s, self._level_s, settings.answer
        voiceless_s = None if utterance.speech is None else utterance.voiceless_s
        if not rules.ends_words(known_s, level_s, voiceless_s, answer):
            return False
        waits_s = rules.waits_s(self.segment.words())
        return not waits_s or rules.ends_words(known_s - waits_s, level_s - waits_s, voiceless_s, answer)

    def _end_flush(self, reason: FinalReason, events: list[Result]) -> None:
        segment = self.segment
        final = self._final(reason)
        if isinstance(final, PendingFinal) or final.words or not self._left_out(reason):
            events.append(final)
        if reason is not FinalReason.CLOSE:
            if self._rewinding is not None:
                self._rewinding.flushed(segment.part)
            segment.restart(self.settings.bias)
        segment.base_s = segment.cursor_s
        for owed in self._flushes.popleft():
            events += self.empty_final(segment.start_s, owed)

    def _left_out(self, reason: FinalReason) -> bool:
        """Whether an empty final is not sent."""
        return reason is FinalReason.CLOSE and self._closing is Closing.WITH_TEXT_ONLY

    def _final(
        self, reason: FinalReason, count: int | None = None, until_s: float | None = None
    ) -> Final | PendingFinal:
        """Close the segment as `OpenSegment.close`; endpoints, gaps and the next words follow the first pass."""
        final = self.segment.close(reason, count, until_s)
        words = final.first.words if isinstance(final, PendingFinal) else final.words
        self.utterance.freeze(words, ends=reason is not FinalReason.MAX_LEN)
        return final if self.speakers is None else self.speakers.in_final(final)


def speakers_by(rules: SpeakerRules) -> Speakers:
    """Return what distinguishes the speakers of one channel; its module is loaded only for this."""
    from server.recognition.segments.speakers import Speakers

    return Speakers(rules)


def other_words(channels: Sequence[Segmenter]) -> int:
    """Return the words of finals so far by other voices than the one that is listened to."""
    return sum([one.speakers.other_words for one in channels if one.speakers is not None])


def listened(channels: Sequence[Segmenter], events: list[Event], *, alone: bool) -> list[Event]:
    """Count the words of other voices, and leave them out if the stream is of one voice `alone`."""
    remaining: list[Event] = []
    for event in events:
        if isinstance(event, Final | Partial) and (others := others_in(event.words)):
            if isinstance(event, Final) and (speakers := channels[event.channel].speakers) is not None:
                speakers.other_words += others
            remaining.append(without_others(event) if alone else event)
        else:
            remaining.append(event)
    return remaining
