"""The output side of one channel: results of steps in, events out. Segments, endpoints and flushes are decided here.

Sans-I/O and without a clock: every decision is a function of the audio and of the client's frames in their order, so
that a transcript cannot depend on batching, on timing or on how the audio was cut into messages. The decoder state
belongs to the channel; whoever holds the results of a batch advances it, then calls `decoded`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from model.config import ModelConfig
from model.ctc import Decoder, DecoderState, Word
from server.events import Event, Final, FinalReason, Partial, SpeechStarted, UtteranceGap
from server.speech import SpeechTrack
from server.steps import Marker, StepTag

OVERTIME_S = 5.0  # how long a segment may go over its maximum while its only word is unfinished


@dataclass(frozen=True, slots=True)
class Rules:
    """When a channel says what. None switches a rule off."""

    endpoint_s: float | None
    quiet_s: float  # silence after which voice begins anew
    utterance_gap_s: float | None
    max_utterance_s: float
    partials: bool
    every_step: bool


class Channel:
    """One recognised channel: it owns the decoder state and the open segment."""

    def __init__(
        self, index: int, config: ModelConfig, decoder: Decoder, rules: Rules, speech: SpeechTrack | None = None
    ) -> None:
        self.index = index
        self.speech = speech
        self._config = config
        self._decoder = decoder
        self._rules = rules
        self.state: DecoderState = decoder.start(config.delay_frames)
        self._revision = self.state.revision
        self._base_s = 0.0  # stream time at which the decoder state started
        self._start_s = 0.0  # where the open segment starts
        self._cursor_s = 0.0  # where the last result ends
        self._speaking = False
        self._last_word_end_s: float | None = None  # of the words frozen last, until a gap or new text follows them
        self._flushes: deque[list[FinalReason]] = deque()  # flushes on their way, each with the empty finals owed after
        self.closed = False
        self._text_only = False

    def flushing(self) -> None:
        """A flush was pushed: its marker will come back."""
        self._flushes.append([])

    def nothing_to_flush(self, reason: FinalReason) -> list[Event]:
        """A flush was asked for and nothing was received since the last one: the answer is empty, now or after it."""
        if self._flushes:
            self._flushes[-1].append(reason)
            return []
        return self._empty(reason)

    def close_with_text_only(self) -> None:
        """The last final is to be left out if it is empty: nobody asked for it."""
        self._text_only = True

    def decoded(self, tag: StepTag) -> list[Event]:
        """Say what the result of this step changes; the decoder state has been advanced over it."""
        events: list[Event] = []
        self._cursor_s = tag.end_s
        if self.speech is None:
            self._notice_text(events)
        else:
            self._notice_voice(self.speech, tag, events)
        if tag.marker is Marker.FINALIZE:
            self._flushed(FinalReason.FINALIZE, events)
        elif tag.marker is Marker.CLOSE:
            self._flushed(FinalReason.CLOSE, events)
        elif tag.marker is Marker.AUDIO and not self._notice_gap(events):
            self._extend_segment(events)
        return events

    def _notice_text(self, events: list[Event]) -> None:
        """Without a voice-activity model, the first letter after an endpoint is the start of speech."""
        if self.state.has_text and not self._speaking:
            self._speaking = True
            events.append(SpeechStarted(self.index, self._absolute(self._decoder.words(self.state)[0]).start_s))

    def _notice_voice(self, speech: SpeechTrack, tag: StepTag, events: list[Event]) -> None:
        before_s = speech.follow(tag.end_sample)
        if before_s is not None:
            start_s = max(0.0, self._cursor_s - before_s)
            if not self.state.has_text:
                self._tell_gap(start_s, events)  # text trails the voice: a gap must be told before what ends it
            events.append(SpeechStarted(self.index, start_s))
        if speech.silence_s >= self._rules.quiet_s:
            speech.quiet()

    def _extend_segment(self, events: list[Event]) -> None:
        if self._at_endpoint():
            events.append(self._final(FinalReason.ENDPOINT))
        elif self._cursor_s - self._start_s >= self._rules.max_utterance_s and self._may_cut():
            events.append(self._final(FinalReason.MAX_LEN, self._decoder.stable_words(self.state) or None))
        elif self._rules.every_step or (self._rules.partials and self.state.revision != self._revision):
            events.append(self._partial())

    def _at_endpoint(self) -> bool:
        needed_s = self._rules.endpoint_s
        if needed_s is None or not self.state.has_text or self._silence_s() < needed_s:
            return False
        return self.speech is None or self.speech.silence_s >= needed_s

    def _may_cut(self) -> bool:
        """An over-long segment ends after its finished words; one unfinished word has until the overtime is over."""
        if not self.state.has_text or self._decoder.stable_words(self.state):
            return True
        return self._cursor_s - self._start_s >= self._rules.max_utterance_s + OVERTIME_S

    def _notice_gap(self, events: list[Event]) -> bool:
        """Return whether a gap closed the open segment: where no endpoint froze the words, the gap does."""
        needed_s = self._rules.utterance_gap_s
        if needed_s is None:
            return False
        froze = self.state.has_text and self._silence_s() >= needed_s and not self._at_endpoint()
        if froze:
            events.append(self._final(FinalReason.MAX_LEN))
        elif self.state.has_text:
            self._last_word_end_s = None
        if self.speech is None or not self.speech.speaking:
            self._tell_gap(self._decoded_s(), events)
        return froze

    def _tell_gap(self, until_s: float, events: list[Event]) -> None:
        needed_s, last_s = self._rules.utterance_gap_s, self._last_word_end_s
        if needed_s is not None and last_s is not None and until_s - last_s >= needed_s:
            events.append(UtteranceGap(self.index, last_s))
            self._last_word_end_s = None

    def _flushed(self, reason: FinalReason, events: list[Event]) -> None:
        final = self._final(reason)
        if final.words or not self._text_only:
            events.append(final)
        self.closed = reason is FinalReason.CLOSE
        self.state = self._decoder.start(self._config.delay_frames)  # the next step starts the model afresh too
        self._revision = self.state.revision
        self._base_s = self._cursor_s
        for owed in self._flushes.popleft():
            events += self._empty(owed)

    def _empty(self, reason: FinalReason) -> list[Event]:
        self.closed = reason is FinalReason.CLOSE
        return [] if self._text_only else [Final(self.index, self._start_s, 0.0, (), reason)]

    def _final(self, reason: FinalReason, count: int | None = None) -> Final:
        """Close the segment at the cursor with its first `count` words, None for all of them."""
        words = tuple(self._absolute(word) for word in self._decoder.take(self.state, count))
        final = Final(self.index, self._start_s, self._cursor_s - self._start_s, words, reason)
        self._start_s = self._cursor_s
        self._revision = self.state.revision
        if reason is not FinalReason.MAX_LEN:
            self._speaking = False
        if words:
            self._last_word_end_s = words[-1].end_s
        return final

    def _partial(self) -> Partial:
        self._revision = self.state.revision
        words = tuple(self._absolute(word) for word in self._decoder.words(self.state))
        stable = self._decoder.stable_words(self.state)
        return Partial(self.index, self._start_s, self._cursor_s - self._start_s, words, stable)

    def _absolute(self, word: Word) -> Word:
        """Move a word from decoder time to stream time, inside its segment."""
        start_s = min(max(self._base_s + word.start_s, self._start_s), self._cursor_s)
        end_s = min(max(self._base_s + word.end_s, start_s), self._cursor_s)
        return Word(word.text, start_s, end_s, word.confidence)

    def _silence_s(self) -> float:
        return self.state.silence_frames * self._config.frame_s

    def _decoded_s(self) -> float:
        return self._base_s + self.state.frames * self._config.frame_s
