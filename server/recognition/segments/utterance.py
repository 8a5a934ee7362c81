"""The open utterance of one channel: start of speech, end of speech, and the gap after its last word. No clock, no I/O.

Speech starts with voice if a voice-activity model is used, else with the first word.
"""

from __future__ import annotations

from copy import copy

from model.ctc.words import Word
from server.recognition.events import SpeechStarted, UtteranceGap
from server.recognition.results.pending_finals import Result
from server.recognition.saved_state import SavedChannel
from server.recognition.segments.endpointing import EndpointRules, VoiceActivity
from server.recognition.segments.open_segment import OpenSegment

TRAIL_S = 1.0  # after this much voice, its first words are decoded


class Utterance:
    """Speech since the last endpoint, over one segment or several."""

    def __init__(self, index: int, speech: VoiceActivity | None) -> None:
        self.index = index  # of the channel
        self.speech = speech
        self.speaking = False  # a word was recognized since the last endpoint
        self.started_s: float | None = None  # start of the voice of the open utterance, or of the next one
        self.last_word_end_s: float | None = None  # end of the last frozen words, until a gap or new text follows them

    @property
    def voiceless_s(self) -> float | None:
        """Silence by the voice-activity model; None if endpoints do not need it."""
        return self.speech.silence_s if self.speech is not None and self.speech.ends_speech else None

    def detect_voice(self, segment: OpenSegment, rules: EndpointRules, end_sample: int, events: list[Result]) -> None:
        """Follow the voice-activity model up to this sample."""
        speech = self.speech
        assert speech is not None, "only asked with a model"
        before_s = speech.follow(end_sample)
        if before_s is not None:
            start_s = max(0.0, segment.cursor_s - before_s)
            if not segment.state.has_text:
                # Text trails the voice: the gap comes before the speech that ends it.
                self._end_gap(start_s, rules.utterance_gap_s, events)
            events.append(SpeechStarted(self.index, start_s))
            self.started_s = start_s
        if speech.silence_s >= rules.quiet_s:
            speech.quiet()

    def detect_text(self, segment: OpenSegment, events: list[Result]) -> None:
        """Take the first text after an endpoint; if no voice-activity model is used, speech starts at its first word.

        Also if the voice has continued since before the endpoint, as in loud surroundings: then it has no new start.
        Call it at every step until the segment's gate is confident, which depends on the words of all these steps.
        """
        words = segment.words()
        if words and not self.speaking:
            self.speaking = True
            if self.started_s is None and (self.speech is None or self.speech.speaking):
                events.append(SpeechStarted(self.index, segment.placed(words)[0].start_s))

    def text_follows(self) -> None:
        """Record that new text follows the last frozen words."""
        self.last_word_end_s = None

    def detect_gap(self, segment: OpenSegment, needed_s: float, events: list[Result]) -> None:
        """Report the gap after the last frozen words if it is long enough."""
        if not self._voice_leads(segment.cursor_s):
            self._end_gap(segment.known_s, needed_s, events)

    def _voice_leads(self, cursor_s: float) -> bool:
        """Whether voice has begun whose words are not decoded yet: they may end or prevent a gap."""
        speech, started_s = self.speech, self.started_s
        if speech is None or not speech.speaking:
            return False
        return speech.ends_speech or (started_s is not None and cursor_s - started_s < TRAIL_S)

    def _end_gap(self, until_s: float, needed_s: float | None, events: list[Result]) -> None:
        last_s = self.last_word_end_s
        if needed_s is not None and last_s is not None and until_s - last_s >= needed_s:
            events.append(UtteranceGap(self.index, last_s))
            self.last_word_end_s = None

    def freeze(self, words: tuple[Word, ...], *, ends: bool) -> None:
        """Take the words of a final, in stream time; `ends`: the utterance ends with them.

        The next word or voice then starts speech; voice that began after these words belongs to the next ones.
        """
        if ends:
            self.speaking = False
            started_s, speech = self.started_s, self.speech
            if started_s is not None and speech is not None:
                goes_on = speech.speaking and (not words or started_s >= words[-1].end_s)
                self.started_s = started_s if goes_on else None
        if words:
            self.last_word_end_s = words[-1].end_s

    def fork(self) -> Utterance:
        """Return an utterance that continues without voice activity."""
        twin = copy(self)
        twin.speech = None
        return twin

    def restore(self, saved: SavedChannel) -> None:
        """Continue from a snapshot."""
        if self.speech is not None and saved.voice is not None:
            self.speech.restore(saved.voice)
        self.speaking, self.last_word_end_s, self.started_s = saved.speaking, saved.last_word_end_s, saved.started_s
