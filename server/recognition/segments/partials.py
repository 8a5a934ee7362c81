"""Partials of the open segment: whether to send one, and its words in stream time. Pure."""

from __future__ import annotations

from model.ctc.words import Word
from server.recognition.events import Partial
from server.recognition.saved_state import SavedPartials


class PartialFilter:
    """Decides whether a partial is sent: its words changed and the client's interval of audio is over."""

    def __init__(self, *, tell_stable: bool, interval_s: float) -> None:
        self._tell_stable = tell_stable
        self._interval_s = interval_s
        self._checked: tuple[int, int] | None = None  # revision and stable words at the last check
        self._sent: tuple[tuple[str, ...], int] = ((), 0)  # words and stable words of the segment's last partial
        self._sent_s: float | None = None  # end of the segment's last partial
        self.last_end_s = 0.0  # end of the last result of any kind

    def saved(self) -> SavedPartials:
        """Return a snapshot."""
        texts, stable = self._sent
        return SavedPartials(self._checked, texts, stable, self._sent_s, self.last_end_s)

    def restore(self, saved: SavedPartials) -> None:
        """Continue from a snapshot."""
        self._checked, self._sent, self._sent_s = saved.checked, (saved.texts, saved.stable), saved.sent_s
        self.last_end_s = saved.last_end_s

    def restart(self, end_s: float) -> None:
        """Begin a segment at the end of a final; words that the final left open count as new."""
        self._checked, self._sent, self._sent_s = None, ((), 0), None
        self.last_end_s = end_s

    def due(self, revision: int, stable: int, cursor_s: float) -> bool:
        """Whether words may have changed since the last check, and the interval is over. Cheap: asked every step."""
        if self._sent_s is not None and cursor_s - self._sent_s < self._interval_s:
            return False  # no check is lost: a change now still counts when the interval is over
        before, self._checked = self._checked, (revision, stable)
        return before != self._checked

    def is_news(self, partial: Partial) -> bool:
        """Whether the partial differs from the last one; if so, it is recorded as sent."""
        texts = tuple(word.text for word in partial.words)
        content = (texts, partial.stable_words if self._tell_stable else 0)
        if content == self._sent:
            return False
        self._sent, self._sent_s = content, partial.start_s + partial.duration_s
        self.last_end_s = self._sent_s
        return True


class WordPlacer:
    """Places the words of one segment in stream time; words that have not changed are not placed again."""

    def __init__(self) -> None:
        self._words: tuple[Word, ...] = ()  # in decoder time, as placed last
        self._placed: tuple[Word, ...] = ()
        self._settled = 0  # number of words, from the first, that end before the cursor and keep their place

    def restart(self) -> None:
        """Begin another segment."""
        self._words, self._placed, self._settled = (), (), 0

    def place(self, words: tuple[Word, ...], base_s: float, start_s: float, cursor_s: float) -> tuple[Word, ...]:
        """Return the words of the segment from `start_s`, moved by `base_s` and ended at the cursor at the latest.

        Within a segment `base_s` and `start_s` are always the same, and the cursor does not go back. The same words
        give the same tuple.
        """
        if words is self._words and self._settled == len(words):
            return self._placed
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
