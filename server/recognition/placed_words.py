"""The open segment's words in stream time. Words that stand as they stood after the step before are not made again.

An answer to every step repeats all words of the segment, of which at most the last ones change. Pure.
"""

from __future__ import annotations

from model.ctc.words import Word


class PlacedWords:
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
