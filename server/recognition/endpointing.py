"""When a channel says what: the endpoint rules as functions of silences and lengths, in seconds of audio. Pure."""

from __future__ import annotations

from dataclasses import dataclass

OVERTIME_S = 5.0  # how long a segment may go over its maximum while its only word is unfinished


@dataclass(frozen=True, slots=True)
class Rules:
    """None switches a rule off. A `voiceless_s` is the silence that a voice-activity model hears, None without one."""

    endpoint_s: float | None  # silence behind words that closes a segment
    silence_s: float | None  # silence without a word that closes a segment
    quiet_s: float  # silence after which voice begins anew
    utterance_gap_s: float | None
    max_utterance_s: float
    partials: bool
    every_step: bool
    tell_stable: bool  # a word that became stable is news, even where no word changed
    partial_interval_s: float  # of audio, at least, from one partial of a segment to the next

    def ends_words(self, silence_s: float, voiceless_s: float | None) -> bool:
        """Whether so much silence behind words closes their segment: an utterance ended."""
        return _lasts(self.endpoint_s, silence_s, voiceless_s)

    def ends_silence(self, silent_s: float, voiceless_s: float | None) -> bool:
        """Whether a segment without a word, silent for so long, should not wait for the next words."""
        return _lasts(self.silence_s, silent_s, voiceless_s)

    def cuts(self, length_s: float, *, whole_words: bool) -> bool:
        """Whether a segment is too long: it ends behind whole words; one unfinished word has until overtime is over."""
        return length_s >= self.max_utterance_s + (0.0 if whole_words else OVERTIME_S)


def _lasts(needed_s: float | None, silence_s: float, voiceless_s: float | None) -> bool:
    """Silence is what the recogniser and the voice-activity model both call so."""
    return needed_s is not None and silence_s >= needed_s and (voiceless_s is None or voiceless_s >= needed_s)
