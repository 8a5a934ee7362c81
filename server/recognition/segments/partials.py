"""Partials of the open segment: whether to send one, how many words it shows, and its words in stream time. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from model.ctc.words import Word
from server.recognition.events import Partial
from server.recognition.saved_state import SavedPartials, SavedSettled

# Seconds that a word has stood at least, and the share of the weight that it needs then: the last word, and others.
# Source: docs/decisions/segments.md, "Show only settled words where a client asks".
LAST = ((0.4, 0.6), (0.32, 0.7), (0.24, 0.8), (0.16, 0.92))
FOLLOWED = ((0.48, 0.55), (0.16, 0.7), (0.0, 0.8))
ROUNDING_S = 0.02  # step times are floating-point sums, so they may be slightly below a multiple
SHORTEST_S = 0.04  # of a word that is put at the edge of its segment: a frame of the shipped model


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
        texts = tuple([word.text for word in partial.words])
        content = (texts, partial.stable_words if self._tell_stable else 0)
        if content == self._sent:
            return False
        self._sent, self._sent_s = content, partial.start_s + partial.duration_s
        self.last_end_s = self._sent_s
        return True


class SettledWords:
    """The number of words that the interims of an open segment show with `interim_stability=high`.

    The last word of an interim is often the beginning of a longer word, and earlier words may still change with it. A
    word is shown once hypotheses with enough of the total weight agree on all words up to it. The longer a word is
    unchanged, the less weight it needs. A word that is shown stays until the text changes.
    """

    def __init__(self) -> None:
        self._texts: tuple[str, ...] = ()  # of the open segment, at the last step
        self._since_s: tuple[float, ...] = ()  # per word: end of the step before it appeared
        self._before_s = 0.0  # end of the last step
        self._shown = 0

    def saved(self) -> SavedSettled:
        """Return a snapshot."""
        return SavedSettled(self._texts, self._since_s, self._before_s, self._shown)

    def restore(self, saved: SavedSettled) -> None:
        """Continue from a snapshot."""
        self._texts, self._since_s, self._before_s, self._shown = (
            saved.texts,
            saved.since_s,
            saved.before_s,
            saved.shown,
        )

    def restart(self, end_s: float) -> None:
        """Begin a segment at the end of a final."""
        self._texts, self._since_s, self._before_s, self._shown = (), (), end_s, 0

    def count(
        self, words: Sequence[Word], stable: int, agreement: Callable[[], Sequence[float]], cursor_s: float
    ) -> int:
        """Return how many of the words are settled at a step that ends at `cursor_s`; call it at every step.

        The first `stable` words can no longer change. `agreement` returns the share of the weight for each word.
        """
        texts, kept = tuple([word.text for word in words]), 0
        for before, now in zip(self._texts, texts, strict=False):
            if before != now:
                break
            kept += 1
        self._since_s = self._since_s[:kept] + (self._before_s,) * (len(texts) - kept)
        self._texts, self._before_s = texts, cursor_s
        self._shown = max(min(self._shown, kept), stable)
        if self._shown < len(texts):
            shares = agreement()
            while self._shown < min(len(texts), len(shares)) and self._is_settled(self._shown, shares, cursor_s):
                self._shown += 1
        return self._shown

    def _is_settled(self, place: int, shares: Sequence[float], cursor_s: float) -> bool:
        stood_s = cursor_s - self._since_s[place] + ROUNDING_S
        needs = LAST if place == len(self._texts) - 1 else FOLLOWED
        return any(stood_s >= least_s and shares[place] >= share for least_s, share in needs)


class WordPlacer:
    """Places the words of one segment in stream time; words that have not changed are not moved again."""

    def __init__(self) -> None:
        self._words: tuple[Word, ...] = ()  # in decoder time, as moved last
        self._moved: tuple[Word, ...] = ()
        self.fitting = 0  # number of the words placed last, from the first, whose times later words cannot change

    def restart(self) -> None:
        """Begin another segment."""
        self._words, self._moved = (), ()

    def place(self, words: tuple[Word, ...], base_s: float, start_s: float, cursor_s: float) -> tuple[Word, ...]:
        """Return the words as `placed`. Within a segment `base_s` and `start_s` are always the same.

        The same words give the same tuple if they end before the cursor.
        """
        unchanged = min(len(words), len(self._words))
        while words[:unchanged] != self._words[:unchanged]:
            unchanged -= 1  # hardly ever more than the last word changes
        if not unchanged == len(words) == len(self._moved):
            after_s = self._moved[unchanged - 1].end_s if unchanged else start_s
            self._moved = self._moved[:unchanged] + _moved(words[unchanged:], base_s, after_s)
        self._words, self.fitting = words, _fitting(self._moved, cursor_s)
        return _ended(self._moved, start_s, cursor_s)


def placed(words: Sequence[Word], base_s: float, start_s: float, end_s: float) -> tuple[Word, ...]:
    """Move words from decoder time to stream time, inside their segment.

    A word that was said outside the segment is put at its edge and lasts `SHORTEST_S`; the words next to it give way.
    """
    return _ended(_moved(words, base_s, start_s), start_s, end_s)


def _moved(words: Sequence[Word], base_s: float, after_s: float) -> tuple[Word, ...]:
    """Move words by `base_s`; each begins after the one before it, the first at `after_s` at the earliest."""
    found: list[Word] = []
    for word in words:
        begin_s = max(base_s + word.start_s, after_s)
        after_s = max(base_s + word.end_s, begin_s + min(SHORTEST_S, word.end_s - word.start_s))
        found.append(_between(word, begin_s, after_s))
    return tuple(found)


def _between(word: Word, begin_s: float, end_s: float) -> Word:
    return Word(word.text, begin_s, end_s, word.confidence, word.language, None, word.written, word.acknowledges)


def _fitting(words: Sequence[Word], end_s: float) -> int:
    """Return the number of words, from the first, that end at `end_s` at the latest."""
    count = len(words)
    while count and words[count - 1].end_s > end_s:
        count -= 1
    return count


def _ended(words: tuple[Word, ...], start_s: float, end_s: float) -> tuple[Word, ...]:
    """Return the words with an end at `end_s` at the latest; those that end before it are the same."""
    inside = _fitting(words, end_s)
    if inside == len(words):
        return words
    after_s, rest = words[inside - 1].end_s if inside else min(start_s, end_s), words[inside:]
    longest_s = (end_s - after_s) / len(rest)  # in equal parts, if there is no room for the shortest
    ended: list[Word] = []
    for word in reversed(rest):
        least_s = min(SHORTEST_S, word.end_s - word.start_s, longest_s)
        begin_s = max(min(word.start_s, end_s - least_s), after_s)
        ended.append(_between(word, begin_s, end_s))
        end_s = begin_s
    return (*words[:inside], *reversed(ended))
