"""One channel's segments: decoder text in; partials, finals, endpoints and flushes out. No clock, no I/O."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from enum import Enum, auto
from functools import partial

from model.ctc.bias import NO_BIAS, Bias
from model.ctc.rewind import KEPT_S, RewindDecoder, RewindState
from model.ctc.words import Agreeing, Decoder, DecoderState, SecondPass, TwoPass, Word
from model.description import ModelDescription
from server.audio.pcm import PCM
from server.recognition.events import (
    Correction,
    Event,
    Final,
    FinalReason,
    Partial,
    SpeechStarted,
    TurnAnswered,
    UtteranceGap,
)
from server.recognition.pending_finals import PendingFinal, Result
from server.recognition.saved_state import SavedChannel
from server.recognition.segments.channel_settings import ChannelSettings, PendingChanges
from server.recognition.segments.endpointing import EndpointRules, ScoredEnd, VoiceActivity
from server.recognition.segments.partials import PartialFilter, WordPlacer, placed
from server.recognition.segments.rewinding import Part, Rewind, Rewinding
from server.recognition.segments.segment_audio import SegmentAudio
from server.recognition.segments.settled_words import SettledWords
from server.recognition.segments.speech_gate import Levels, SpeechGate
from server.recognition.steps import Marker, StepTag

TRAIL_S = 1.0  # of voice: words that it begins with are decoded by then
PAUSE_S = 0.3  # of silence: no word is unfinished there, so a segment that is too long is cut after all of its words


class Closing(Enum):
    """How a channel ends; it is closed once no flush is on its way."""

    NO = auto()
    WITH_FINAL = auto()  # the client asked for the end: the last final is sent even if it is empty
    WITH_TEXT_ONLY = auto()  # the server ends the stream: an empty last final is left out


class Segmenter:
    """One recognized channel: it owns the decoder state and the open segment.

    `release` it once, when the session is over: the decoder may keep its states in slots.
    """

    def __init__(
        self,
        index: int,
        config: ModelDescription,
        decoder: Decoder,
        rules: EndpointRules,
        *,
        bias: Bias,
        speech: VoiceActivity | None = None,
    ) -> None:
        self.index = index
        self.speech = speech
        self._decoder = decoder
        self._two_pass = decoder if isinstance(decoder, TwoPass) else None
        self._audio = None if self._two_pass is None else SegmentAudio(config)
        self._rewinding = Rewinding(decoder) if isinstance(decoder, RewindDecoder) else None
        self._gate = SpeechGate(config, KEPT_S if self._rewinding is not None else 0.0)
        self._delay_frames, self._frame_s = config.delay_frames, config.frame_s
        self._settings = PendingChanges(ChannelSettings(bias, rules))
        self._rules = rules  # the current ones
        self._bias_until: tuple[int, Bias] | None = None  # steps sent up to which the bias holds, and the next one
        self.steps_sent = 0  # to the engine
        self._steps_answered = 0
        self._answers: deque[tuple[int, float | None]] = deque()  # of the turn model, each with the step it follows
        self._answer: float | None = None  # the present one
        self.state: DecoderState = decoder.start(self._delay_frames, bias)
        self._partials = PartialFilter(tell_stable=rules.tell_stable, interval_s=rules.partial_interval_s)
        self._settled = SettledWords() if rules.settled_only else None
        self._placer = WordPlacer()
        self._read: tuple[int, tuple[Word, ...]] | None = None  # a revision of the state, and `_words` there
        self._base_s = 0.0  # stream time at which the decoder state started
        self._start_s = 0.0  # where the open segment starts
        self.cursor_s = 0.0  # end of the last step that was decoded
        self._speaking = False  # a word was recognized since the last endpoint
        self._started_s: float | None = None  # start of the voice of the open utterance, or of the next one
        self._last_word_end_s: float | None = None  # of the words frozen last, until a gap or new text follows them
        self._flushes: deque[list[FinalReason]] = deque()  # on their way, each with the empty finals that follow it
        self._closing = Closing.NO

    @property
    def decoder(self) -> Decoder:
        """What its state belongs to."""
        return self._decoder

    @property
    def first_word_s(self) -> float:
        """Start of the open segment's first word; infinity if it has none."""
        words = self._words() if self.state.has_text else ()
        return self._absolute(words[0]).start_s if words else math.inf

    @property
    def open_words(self) -> tuple[Word, ...]:
        """The open segment's words as a partial has them."""
        return tuple([self._absolute(word) for word in self._words()]) if self.state.has_text else ()

    @property
    def known_s(self) -> float:
        """Stream time up to which words are known: the model's delay earlier than the cursor."""
        return self._base_s + self.state.frames * self._frame_s

    @property
    def decoded_s(self) -> float:
        """As `known_s`; infinity at the end."""
        return math.inf if self.closed else self.known_s

    @property
    def closed(self) -> bool:
        """Whether the last final is out."""
        return self._closing is not Closing.NO and not self._flushes

    def sent(self, step: PCM) -> None:
        """Note a step that is sent to the engine."""
        self.steps_sent += 1
        if self._bias_until is not None and self.steps_sent == self._bias_until[0]:
            self.set_bias(self._bias_until[1])
        self._gate.sent(step)
        if self._audio is not None:
            self._audio.add(step)

    def release(self) -> None:
        """Give the decoder state back; nothing may be decoded any more."""
        self._decoder.release(self.state)

    def saved(self, default: Bias) -> SavedChannel:
        """Return a snapshot, taken between two steps. The bias is omitted if it equals `default`, the query's."""
        bias = self._settings.current.bias
        levels_from, levels = self._gate.saved()
        return SavedChannel(
            decoder=self._decoder.save(self.state),
            bias=None if bias == default else bias.phrases,
            partials=self._partials.saved(),
            base_s=self._base_s,
            start_s=self._start_s,
            cursor_s=self.cursor_s,
            speaking=self._speaking,
            last_word_end_s=self._last_word_end_s,
            levels_from=levels_from,
            levels=levels,
            started_s=self._started_s,
            voice=None if self.speech is None else self.speech.saved(),
            settled=None if self._settled is None else self._settled.saved(),
        )

    def fork(self) -> Segmenter:
        """Return a channel that continues from the last step decoded with one flush: the caller sends its steps.

        Its final has the words that a flush of this channel would have there. Release both.
        """
        twin = copy(self)
        twin.state, twin.speech, twin._rewinding = self._decoder.copy(self.state), None, None
        twin._settings = PendingChanges(self._settings.current)
        twin._gate = self._gate.copy()
        twin._audio = None if self._audio is None else self._audio.copy()
        twin._partials, twin._placer = copy(self._partials), copy(self._placer)
        twin._settled, twin._answers = None, deque()
        twin._flushes, twin._closing = deque([[]]), Closing.WITH_FINAL
        return twin

    def restored_state(self, saved: SavedChannel, default: Bias) -> tuple[DecoderState, Bias]:
        """Return the arguments of `restore`, and change nothing. Raises: ValueError, ModelError."""
        bias = default if saved.bias is None else Bias.of(saved.bias)
        return self._decoder.load(saved.decoder, bias), bias

    def restore(self, saved: SavedChannel, state: DecoderState, bias: Bias, voiced: int) -> None:
        """Continue from a snapshot; of a channel that has received no audio. `voiced`: samples in whole windows."""
        self.release()
        if self.speech is not None and saved.voice is not None:
            self.speech.restore(saved.voice, voiced)
        self.state, self._settings = state, PendingChanges(ChannelSettings(bias, self._rules))
        self._partials.restore(saved.partials)
        self._gate.restore(saved.levels_from, saved.levels)
        if self._settled is not None and saved.settled is not None:
            self._settled.restore(saved.settled)
        self._base_s, self._start_s, self.cursor_s = saved.base_s, saved.start_s, saved.cursor_s
        self._speaking, self._last_word_end_s = saved.speaking, saved.last_word_end_s
        self._started_s = saved.started_s

    def start_at(self, stream_s: float) -> None:
        """Let the stream time begin at `stream_s`."""
        self._base_s = self._start_s = self.cursor_s = stream_s
        self._restart_partials(stream_s)

    # Settings

    def set_bias(self, bias: Bias, steps: int = 0, after: Bias = NO_BIAS) -> None:
        """Bias the words of the steps to come; steps on their way keep the old bias, however late they are answered.

        With `steps`, for that many steps; `after` is the bias of those that follow.
        """
        self._bias_until = (self.steps_sent + steps, after) if steps else None
        self._change(replace(self._settings.latest, bias=bias))

    @property
    def bias_steps(self) -> int:
        """Steps to come for which the bias holds, if `set_bias` set a number; else 0."""
        return 0 if self._bias_until is None else self._bias_until[0] - self.steps_sent

    def set_endpoint(self, silence_s: float, scored: ScoredEnd | None) -> None:
        """End utterances of the steps to come after `silence_s`. Not saved: for streams that are not resumable."""
        rules = replace(self._settings.latest.rules, endpoint_s=silence_s, quiet_s=silence_s, scored=scored)
        self._change(replace(self._settings.latest, rules=rules))

    def _change(self, settings: ChannelSettings) -> None:
        self._settings.change(settings, self.steps_sent)
        self._apply_changes()

    def _apply_changes(self) -> None:
        before = self._settings.current
        self._settings.apply(self._steps_answered)
        current = self._settings.current
        self._rules = current.rules
        if current.bias is not before.bias:
            self._decoder.set_bias(self.state, current.bias)
            self._read = None  # words that only the earlier key terms contain are spelled anew

    # Corrections

    def rewind(self, seconds: float, bias: Bias) -> list[Event]:
        """Decode the finals of the last seconds of the audio sent so far again, with these key terms.

        Returns the correction, unless steps are on their way: it follows them. For a decoder that can.
        """
        assert self._rewinding is not None, "checked by the session"
        asked = Rewind(self.steps_sent, seconds, bias)
        if self.steps_sent == self._steps_answered:
            return [self._corrected(asked)]
        self._rewinding.waiting.append(asked)
        return []

    def _corrected(self, asked: Rewind) -> Correction:
        assert self._rewinding is not None, "only asked for then"
        return self._rewinding.correction(self.index, self._part, self.cursor_s, asked)

    @property
    def _part(self) -> Part:
        """Its present decoder state, up to the end of the last final."""
        assert isinstance(self.state, RewindState), "of a decoder that can decode again"
        return Part(self.state, self._base_s, self._start_s, self._gate.frozen())

    # Answers of the turn model

    def take_answer(self, answer: float | None, after_step: int) -> bool:
        """Let an answer of the turn model count after a step, numbered from 1; None ends the effect of the last one.

        Return whether it is in time: no later step is answered.
        """
        if self._steps_answered > after_step:
            return False
        self._answers.append((after_step, answer))
        return True

    # Flushes and the end

    def flushing(self) -> None:
        """Note that a flush was sent: a step with its marker will be answered."""
        self._flushes.append([])

    def nothing_to_flush(self, reason: FinalReason) -> list[Event]:
        """Answer a flush without audio since the last one: an empty final, after the flushes on their way."""
        if self._flushes:
            self._flushes[-1].append(reason)
            return []
        return self.empty_final(self._start_s, reason)

    def empty_final(self, stream_s: float, reason: FinalReason) -> list[Event]:
        """Return an empty final at `stream_s`; none for a close that the server began."""
        return [] if self._left_out(reason) else [Final(self.index, stream_s, 0.0, (), reason)]

    def close(self, closing: Closing) -> None:
        """End with the flushes on their way, or with those that the caller sends next."""
        self._closing = closing

    # Results

    def decoded(self, tag: StepTag) -> list[Result]:
        """Return the results of this step; the decoder state has been advanced over it."""
        events: list[Result] = []
        self._steps_answered += 1
        self._gate.answered()
        if self._audio is not None:
            self._audio.answered()
        self.cursor_s = tag.end_s
        while self._answers and self._answers[0][0] <= self._steps_answered:
            self._answer = self._answers.popleft()[1]
            events.append(TurnAnswered(self.index, self._answer))
        if self.speech is not None:
            self._detect_voice(self.speech, tag, events)
        self._detect_text(events)
        if tag.marker is Marker.AUDIO:
            if not self._detect_gap(events):
                self._extend_segment(events)
        elif tag.marker is Marker.FINALIZE:
            self._end_flush(FinalReason.FINALIZE, events)
        elif tag.marker is Marker.CLOSE:
            self._end_flush(FinalReason.CLOSE, events)
        if self._settings.waiting:
            self._apply_changes()
        while self._rewinding is not None and self._rewinding.due(self._steps_answered):
            events.append(self._corrected(self._rewinding.waiting.popleft()))
        return events

    def _detect_text(self, events: list[Result]) -> None:
        """The first word after an endpoint starts speech, if no model is asked for its voice.

        Or if the voice continues from before the endpoint, as in loud surroundings: it does not begin anew then.
        """
        if not self._speaking and self.state.has_text and (words := self._words()):
            self._speaking = True
            if self._started_s is None and (self.speech is None or self.speech.speaking):
                events.append(SpeechStarted(self.index, self._absolute(words[0]).start_s))

    def _detect_voice(self, speech: VoiceActivity, tag: StepTag, events: list[Result]) -> None:
        before_s = speech.follow(tag.end_sample)
        if before_s is not None:
            start_s = max(0.0, self.cursor_s - before_s)
            if not self.state.has_text:
                self._end_gap(start_s, events)  # text trails the voice: the gap comes before the speech that ends it
            events.append(SpeechStarted(self.index, start_s))
            self._started_s = start_s
        if speech.silence_s >= self._rules.quiet_s:
            speech.quiet()

    def _detect_gap(self, events: list[Result]) -> bool:
        """Return whether a gap closed the open segment: it freezes words that no endpoint has frozen."""
        needed_s = self._rules.utterance_gap_s
        if needed_s is None:
            return False
        has_text = self.state.has_text and bool(self._words())
        freezes = has_text and self._silence_s() >= needed_s and not self._at_endpoint()
        if freezes:
            events.append(self._final(FinalReason.MAX_LEN))
        elif has_text:
            self._last_word_end_s = None
        if not self._voice_leads:
            self._end_gap(self._base_s + self.state.frames * self._frame_s, events)
        return freezes

    @property
    def _voice_leads(self) -> bool:
        """Whether voice has begun whose words may still come: they may end a gap or prevent it."""
        speech, started_s = self.speech, self._started_s
        if speech is None or not speech.speaking:
            return False
        return speech.ends_speech or (started_s is not None and self.cursor_s - started_s < TRAIL_S)

    def _end_gap(self, until_s: float, events: list[Result]) -> None:
        needed_s, last_s = self._rules.utterance_gap_s, self._last_word_end_s
        if needed_s is not None and last_s is not None and until_s - last_s >= needed_s:
            events.append(UtteranceGap(self.index, last_s))
            self._last_word_end_s = None

    def _extend_segment(self, events: list[Result]) -> None:
        """Close the segment after silence or because it is too long; send a partial otherwise."""
        rules = self._rules
        if self.state.has_text and self._at_endpoint():
            if self._speaking or self._words():
                events.append(self._final(FinalReason.ENDPOINT))
                return
            self._take(None)  # taken for noise: the segment continues without it
        has_text = self.state.has_text
        if not has_text:
            until_s = self._silent_until_s()
            if rules.ends_silence(until_s - self._start_s, self._voiceless_s()):
                events.append(self._final(FinalReason.ENDPOINT, until_s=until_s))
                return
        stable = self._decoder.stable_words(self.state)
        shown = None if self._settled is None else self._settle(self._settled, stable)
        paused = has_text and self._silence_s() >= PAUSE_S
        if rules.cuts(self.cursor_s - self._start_s, whole_words=not has_text or paused or stable > 0):
            events.append(self._final(FinalReason.MAX_LEN, None if paused else stable or None))
        elif rules.every_step:
            events.append(self._partial(stable, shown))
        elif rules.partials and self._partials.due(
            self.state.revision, (stable if rules.tell_stable else 0) + (shown or 0), self.cursor_s
        ):
            partial = self._partial(stable, shown)
            if self._partials.is_news(partial):
                events.append(partial)

    def _at_endpoint(self) -> bool:
        return self._rules.ends_words(self._silence_s(), self._voiceless_s(), self._answer)

    def _silent_until_s(self) -> float:
        """Where a segment without text may end.

        At most up to what is decoded, or the next word would begin before its segment; at least to the end of the last
        result, because results never go back. A client that gets a result for every step has had all but this one.
        """
        if self._rules.every_step:
            return self.cursor_s
        decoded_s = self._base_s + self.state.frames * self._frame_s
        return max(self._start_s, self._partials.last_end_s, min(decoded_s, self.cursor_s))

    def _end_flush(self, reason: FinalReason, events: list[Result]) -> None:
        final = self._final(reason)
        if isinstance(final, PendingFinal) or final.words or not self._left_out(reason):
            events.append(final)
        if reason is not FinalReason.CLOSE:
            if self._rewinding is not None:
                self._rewinding.flushed(self._part)
            self._decoder.release(self.state)
            # The next step starts the model afresh too.
            self.state = self._decoder.start(self._delay_frames, self._settings.current.bias)
            self._gate.restart()
            if self._audio is not None:
                self._audio.restart()
        self._base_s = self.cursor_s
        for owed in self._flushes.popleft():
            events += self.empty_final(self._start_s, owed)

    def _left_out(self, reason: FinalReason) -> bool:
        """Whether an empty final is not sent."""
        return reason is FinalReason.CLOSE and self._closing is Closing.WITH_TEXT_ONLY

    def _final(
        self, reason: FinalReason, count: int | None = None, until_s: float | None = None
    ) -> Final | PendingFinal:
        """Close the segment at the cursor, or earlier, with its first `count` words, None for all of them.

        All of them get a second pass if the decoder has one; endpoints, gaps and the next words follow the first.
        """
        end_s = self.cursor_s if until_s is None else until_s
        decode = self._second_pass() if count is None else None
        words = tuple(self._absolute(word) for word in self._take(count))
        final = Final(self.index, self._start_s, end_s - self._start_s, words, reason)
        pending = PendingFinal(final, decode) if words and decode is not None else None
        self._start_s = end_s
        self._placer.restart()
        self._restart_partials(end_s)
        if reason is not FinalReason.MAX_LEN:
            self._end_utterance(words)
        if words:
            self._last_word_end_s = words[-1].end_s
        return pending or final

    def _end_utterance(self, words: tuple[Word, ...]) -> None:
        """Let the next word, or voice, start speech; voice that began after these words is that of the next ones."""
        self._speaking = False
        started_s, speech = self._started_s, self.speech
        if started_s is not None and speech is not None:
            goes_on = speech.speaking and (not words or started_s >= words[-1].end_s)
            self._started_s = started_s if goes_on else None

    def _words(self) -> tuple[Word, ...]:
        """Words of the open segment that pass the gate, in decoder time, as they were at the state's last revision."""
        revision = self.state.revision
        if self._read is None or self._read[0] != revision:
            self._read = revision, self._gate.speech(self._decoder.words(self.state))
        return self._read[1]

    def _take(self, count: int | None) -> tuple[Word, ...]:
        """Take the first `count` words, None for all, from the decoder; return those that pass the gate."""
        taken = self._decoder.take(self.state, count)
        words = self._gate.speech(taken)
        self._read = None
        self._gate.taken(self.state.frames * self._frame_s if count is None else taken[-1].end_s)
        if count is None and self._audio is not None:
            self._audio.taken()
        return words

    def _second_pass(self) -> SecondPass | None:
        """Return the second pass over the open segment, if the decoder has one, with its words in stream time."""
        if self._two_pass is None or self._audio is None:
            return None
        again = self._two_pass.second_pass(self.state, self._audio.decoded())
        return None if again is None else partial(_second_words, again, self._gate.frozen(), self._place)

    def _restart_partials(self, end_s: float) -> None:
        self._partials.restart(end_s)
        if self._settled is not None:
            self._settled.restart(end_s)

    def _settle(self, settled: SettledWords, stable: int) -> int:
        """Return how many of the decoder's words are settled; a decoder with one hypothesis agrees with itself."""
        words = self._decoder.words(self.state) if self.state.has_text else ()
        decoder = self._decoder

        def agreement() -> Sequence[float]:
            return decoder.agreement(self.state) if isinstance(decoder, Agreeing) else (1.0,) * len(words)

        return settled.count(words, stable, agreement, self.cursor_s)

    def _partial(self, stable: int, shown: int | None) -> Partial:
        """Return a partial with the first `shown` of the decoder's words, None for all."""
        duration_s = self.cursor_s - self._start_s
        if not self.state.has_text:
            return Partial(self.index, self._start_s, duration_s, (), 0)
        words = self._placer.place(self._words(), self._base_s, self._start_s, self.cursor_s)
        said = self._gate.said(stable)
        return Partial(
            self.index, self._start_s, duration_s, words if shown is None else words[: self._gate.said(shown)], said
        )

    @property
    def _place(self) -> tuple[float, float, float]:
        """Where the decoder's time begins, the open segment and the audio that comes."""
        return self._base_s, self._start_s, self.cursor_s

    def _absolute(self, word: Word) -> Word:
        return placed(word, *self._place)

    def _voiceless_s(self) -> float | None:
        return self.speech.silence_s if self.speech is not None and self.speech.ends_speech else None

    def _silence_s(self) -> float:
        return self.state.silence_frames * self._frame_s


def _second_words(again: SecondPass, levels: Levels, place: tuple[float, float, float]) -> tuple[Word, ...]:
    """Run the second pass; return the words that pass the gate, in stream time."""
    return tuple(placed(word, *place) for word in again() if levels.has_speech(word))
