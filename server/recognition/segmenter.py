"""One channel's segments: decoder text in; partials, finals, endpoints and flushes out. No clock, no I/O."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from model.config import ModelConfig
from model.ctc.bias import Bias
from model.ctc.words import Decoder, DecoderState, Word
from server.recognition.endpointing import EndpointRules, VoiceActivity
from server.recognition.events import Event, Final, FinalReason, Partial, SpeechStarted, UtteranceGap
from server.recognition.partials import PartialFilter, WordPlacer, placed
from server.recognition.saved_state import SavedChannel
from server.recognition.steps import Marker, StepTag

T = TypeVar("T")


class PendingChanges(Generic[T]):
    """What holds, and what waits: of changes with no step between them, the last one alone."""

    def __init__(self, held: T) -> None:
        self.held = held
        self.pushed = 0  # steps that were handed to the engine
        self.answered = 0
        self._waiting: deque[tuple[int, T]] = deque()  # each with the number of steps that go before it

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    @property
    def latest(self) -> T:
        """What will hold for audio that comes now."""
        return self._waiting[-1][1] if self._waiting else self.held

    def change(self, to: T) -> None:
        """Let it hold for the steps to come."""
        if self._waiting and self._waiting[-1][0] == self.pushed:
            self._waiting.pop()
        self._waiting.append((self.pushed, to))

    def turn(self) -> None:
        """Let hold whatever has its turn."""
        while self._waiting and self._waiting[0][0] <= self.answered:
            self.held = self._waiting.popleft()[1]


@dataclass(frozen=True, slots=True)
class ChannelSettings:
    """How a stretch of audio is heard: towards which words, and where its segments end."""

    bias: Bias
    rules: EndpointRules


class Segmenter:
    """One recognised channel: it owns the decoder state and the open segment.

    `release` it once, when the session is over: the decoder may keep its states in slots.
    """

    def __init__(
        self,
        index: int,
        config: ModelConfig,
        decoder: Decoder,
        rules: EndpointRules,
        *,
        bias: Bias,
        speech: VoiceActivity | None = None,
    ) -> None:
        self.index = index
        self.speech = speech
        self._config = config
        self._decoder = decoder
        self._manners = PendingChanges(ChannelSettings(bias, rules))
        self.state: DecoderState = decoder.start(config.delay_frames, bias)
        self._interims = PartialFilter(tell_stable=rules.tell_stable, interval_s=rules.partial_interval_s)
        self._shown = WordPlacer()
        self._base_s = 0.0  # stream time at which the decoder state started
        self._start_s = 0.0  # where the open segment starts
        self.cursor_s = 0.0  # where the last result ends
        self._speaking = False
        self._last_word_end_s: float | None = None  # of the words frozen last, until a gap or new text follows them
        self._flushes: deque[list[FinalReason]] = deque()  # flushes on their way, each with the empty finals owed after
        self.closed = False
        self._closes = False  # once the flushes on their way are answered
        self._text_only = False

    def release(self) -> None:
        """Give the decoder state back; nothing may be decoded any more."""
        self._decoder.release(self.state)

    def saved(self, default: Bias) -> SavedChannel:
        """Return all of it, between two steps; `default` is the bias that whoever restores it has by itself."""
        held = self._manners.held.bias
        return SavedChannel(
            decoder=self._decoder.save(self.state),
            bias=None if held == default else held.phrases,
            interims=self._interims.saved(),
            base_s=self._base_s,
            start_s=self._start_s,
            cursor_s=self.cursor_s,
            speaking=self._speaking,
            last_word_end_s=self._last_word_end_s,
        )

    def restored_state(self, saved: SavedChannel, default: Bias) -> tuple[DecoderState, Bias]:
        """Return what `restore` needs, and change nothing. Raises: ValueError, ModelError."""
        bias = default if saved.bias is None else Bias.of(saved.bias)
        return self._decoder.load(saved.decoder, bias), bias

    def restore(self, saved: SavedChannel, state: DecoderState, bias: Bias) -> None:
        """Go on as the one that `saved` told would; of a channel that has heard nothing."""
        self.release()
        self.state, self._manners = state, PendingChanges(ChannelSettings(bias, self._rules))
        self._interims.restore(saved.interims)
        self._base_s, self._start_s, self.cursor_s = saved.base_s, saved.start_s, saved.cursor_s
        self._speaking, self._last_word_end_s = saved.speaking, saved.last_word_end_s

    def start_at(self, stream_s: float) -> None:
        """Begin the stream time there."""
        self._base_s = self._start_s = self.cursor_s = stream_s
        self._interims.restart(stream_s)

    def set_bias(self, bias: Bias) -> None:
        """Bias the words of the steps to come; steps on their way keep the old one, however late they are answered."""
        self._change(replace(self._manners.latest, bias=bias))

    def set_endpoint(self, silence_s: float) -> None:
        """End utterances by so much silence in the steps to come. Not saved: of a stream that is not resumable."""
        rules = replace(self._manners.latest.rules, endpoint_s=silence_s, quiet_s=silence_s)
        self._change(replace(self._manners.latest, rules=rules))

    def _change(self, manner: ChannelSettings) -> None:
        self._manners.change(manner)
        self._take_turn()

    @property
    def _rules(self) -> EndpointRules:
        return self._manners.held.rules

    def pushed(self) -> None:
        """One more step was handed to the engine."""
        self._manners.pushed += 1

    def flushing(self) -> None:
        """A flush was pushed: its marker will come back."""
        self._flushes.append([])

    def nothing_to_flush(self, reason: FinalReason) -> list[Event]:
        """A flush was asked for and nothing was received since the last one: the answer is empty, now or after it."""
        if self._flushes:
            self._flushes[-1].append(reason)
            return []
        return self._empty(reason)

    def empty_at(self, stream_s: float, reason: FinalReason) -> list[Event]:
        """As `nothing_to_flush`, but said at once and at this time, where the last flush will end: not yet, maybe."""
        if reason is FinalReason.CLOSE:
            self._closes = True
            self.closed = not self._flushes
        return [] if self._unasked(reason) else [Final(self.index, stream_s, 0.0, (), reason)]

    def close_with_text_only(self) -> None:
        """The last final is to be left out if it is empty: nobody asked for it."""
        self._text_only = True

    def decoded(self, tag: StepTag) -> list[Event]:
        """Say what the result of this step changes; the decoder state has been advanced over it."""
        events: list[Event] = []
        self._manners.answered += 1
        self.cursor_s = tag.end_s
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
        self._take_turn()
        return events

    def _take_turn(self) -> None:
        before = self._manners.held.bias
        self._manners.turn()
        if self._manners.held.bias is not before:
            self._decoder.set_bias(self.state, self._manners.held.bias)

    def _notice_text(self, events: list[Event]) -> None:
        """Without a voice-activity model, the first letter after an endpoint is the start of speech."""
        if self.state.has_text and not self._speaking:
            self._speaking = True
            events.append(SpeechStarted(self.index, self._absolute(self._decoder.words(self.state)[0]).start_s))

    def _notice_voice(self, speech: VoiceActivity, tag: StepTag, events: list[Event]) -> None:
        before_s = speech.follow(tag.end_sample)
        if before_s is not None:
            start_s = max(0.0, self.cursor_s - before_s)
            if not self.state.has_text:
                self._tell_gap(start_s, events)  # text trails the voice: a gap must be told before what ends it
            events.append(SpeechStarted(self.index, start_s))
        if speech.silence_s >= self._rules.quiet_s:
            speech.quiet()

    def _extend_segment(self, events: list[Event]) -> None:
        if self._at_endpoint():
            events.append(self._final(FinalReason.ENDPOINT))
        elif self._at_silence():
            events.append(self._final(FinalReason.ENDPOINT, until_s=self._silent_until_s()))
        elif self._too_long():
            events.append(self._final(FinalReason.MAX_LEN, self._decoder.stable_words(self.state) or None))
        elif self._rules.every_step:
            events.append(self._partial())
        elif self._rules.partials:
            self._tell_news(events)

    def _tell_news(self, events: list[Event]) -> None:
        stable = self._decoder.stable_words(self.state) if self._rules.tell_stable else 0
        if self._interims.look(self.state.revision, stable, self.cursor_s):
            partial = self._partial()
            if self._interims.is_news(partial):
                events.append(partial)

    def _at_endpoint(self) -> bool:
        return self.state.has_text and self._rules.ends_words(self._silence_s(), self._voiceless_s())

    def _at_silence(self) -> bool:
        silent_s = self._silent_until_s() - self._start_s
        return not self.state.has_text and self._rules.ends_silence(silent_s, self._voiceless_s())

    def _silent_until_s(self) -> float:
        """Where a silent segment may end.

        Not behind what is decoded, or the next word would begin before its segment; not before what was said already,
        because results never go back. A client that wants an answer to every step was told about all but this one.
        """
        if self._rules.every_step:
            return self.cursor_s
        return max(self._start_s, self._interims.said_s, min(self._decoded_s(), self.cursor_s))

    def _too_long(self) -> bool:
        whole_words = not self.state.has_text or self._decoder.stable_words(self.state) > 0
        return self._rules.cuts(self.cursor_s - self._start_s, whole_words=whole_words)

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
        if final.words or not self._unasked(reason):
            events.append(final)
        self.closed = reason is FinalReason.CLOSE
        if not self.closed:
            self._decoder.release(self.state)
            # The next step starts the model afresh too.
            self.state = self._decoder.start(self._config.delay_frames, self._manners.held.bias)
        self._base_s = self.cursor_s
        for owed in self._flushes.popleft():
            events += self._empty(owed)
        self.closed |= self._closes and not self._flushes

    def _empty(self, reason: FinalReason) -> list[Event]:
        self.closed = reason is FinalReason.CLOSE
        return [] if self._unasked(reason) else [Final(self.index, self._start_s, 0.0, (), reason)]

    def _unasked(self, reason: FinalReason) -> bool:
        """Nobody asked for this answer, and it would say nothing: the end of a stream that the server ends."""
        return self._text_only and reason is FinalReason.CLOSE

    def _final(self, reason: FinalReason, count: int | None = None, until_s: float | None = None) -> Final:
        """Close the segment at the cursor, or earlier, with its first `count` words, None for all of them."""
        end_s = self.cursor_s if until_s is None else until_s
        words = tuple(self._absolute(word) for word in self._decoder.take(self.state, count))
        final = Final(self.index, self._start_s, end_s - self._start_s, words, reason)
        self._start_s = end_s
        self._shown.restart()
        self._interims.restart(end_s)
        if reason is not FinalReason.MAX_LEN:
            self._speaking = False
        if words:
            self._last_word_end_s = words[-1].end_s
        return final

    def _partial(self) -> Partial:
        words = self._shown.place(self._decoder.words(self.state), self._base_s, self._start_s, self.cursor_s)
        stable = self._decoder.stable_words(self.state)
        return Partial(self.index, self._start_s, self.cursor_s - self._start_s, words, stable)

    def _absolute(self, word: Word) -> Word:
        return placed(word, self._base_s, self._start_s, self.cursor_s)

    def _voiceless_s(self) -> float | None:
        return None if self.speech is None else self.speech.silence_s

    def _silence_s(self) -> float:
        return self.state.silence_frames * self._config.frame_s

    def _decoded_s(self) -> float:
        return self._base_s + self.state.frames * self._config.frame_s
