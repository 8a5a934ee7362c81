"""Partials of the open segment: which are worth sending, and their words in stream time. Pure."""

from __future__ import annotations

from model.ctc.words import Word
from server.recognition.events import Partial
from server.recognition.saved_state import SavedInterims


class PartialFilter:
    """What was said last about the open segment of one channel. Time is audio time, so timing decides nothing."""

    def __init__(self, *, tell_stable: bool, interval_s: float) -> None:
        self._tell_stable = tell_stable
        self._interval_s = interval_s
        self._seen: tuple[int, int] | None = None  # revision and stable words looked at last
        self._told: tuple[tuple[str, ...], int] = ((), 0)
        self._told_s: float | None = None  # cursor of the segment's last partial
        self.said_s = 0.0  # where the last result of any kind ended

    def saved(self) -> SavedInterims:
        """Return all of it."""
        texts, stable = self._told
        return SavedInterims(self._seen, texts, stable, self._told_s, self.said_s)

    def restore(self, saved: SavedInterims) -> None:
        """Go on as the one that `saved` told would."""
        self._seen, self._told, self._told_s = saved.seen, (saved.texts, saved.stable), saved.told_s
        self.said_s = saved.said_s

    def restart(self, end_s: float) -> None:
        """A final ended the segment there; what it left open is news."""
        self._seen, self._told, self._told_s = None, ((), 0), None
        self.said_s = end_s

    def look(self, revision: int, stable: int, cursor_s: float) -> bool:
        """Whether there may be news, and it may be told now. Cheap: asked after every step."""
        if self._told_s is not None and cursor_s - self._told_s < self._interval_s:
            return False  # not seen: it is looked at again when the interval is over
        before, self._seen = self._seen, (revision, stable)
        return before != self._seen

    def is_news(self, partial: Partial) -> bool:
        """Whether it says anything that the last one did not; if so, it counts as told."""
        texts = tuple(word.text for word in partial.words)
        told = (texts, partial.stable_words if self._tell_stable else 0)
        if told == self._told:
            return False
        self._told, self._told_s = told, partial.start_s + partial.duration_s
        self.said_s = self._told_s
        return True


class WordPlacer:
    """What was placed last, of one segment."""

    def __init__(self) -> None:
        self._words: tuple[Word, ...] = ()  # as the decoder has them
        self._placed: tuple[Word, ...] = ()
        self._settled = 0  # so many, from the first, end before the cursor and keep their place

    def restart(self) -> None:
        """Begin another segment."""
        self._words, self._placed, self._settled = (), (), 0

    def place(self, words: tuple[Word, ...], base_s: float, start_s: float, cursor_s: float) -> tuple[Word, ...]:
        """Return the words of the segment from `start_s`, moved by `base_s` and ended at the cursor at the latest.

        Within a segment `base_s` and `start_s` are always the same, and the cursor does not go back. The same words
        give the same tuple.
        """
        kept = min(self._settled, len(words))
        while words[:kept] != self._words[:kept]:
            kept -= 1  # hardly ever more than the last word changes
        if kept == len(words) == len(self._placed):
            return self._placed
        self._placed = self._placed[:kept] + tuple([placed(word, base_s, start_s, cursor_s) for word in words[kept:]])
        while kept < len(words) and max(base_s + words[kept].end_s, start_s) <= cursor_s:
            kept += 1
        self._words, self._settled = words, kept
        return self._placed


def placed(word: Word, base_s: float, start_s: float, cursor_s: float) -> Word:
    """Move a word from decoder time to stream time, inside its segment."""
    begin_s = min(max(base_s + word.start_s, start_s), cursor_s)
    return Word(word.text, begin_s, min(max(base_s + word.end_s, begin_s), cursor_s), word.confidence)
