"""Stability of partial transcripts: the share of shown words that change later, and the delay until a word is stable.

Computed from the messages that a client receives, in audio time: the time of a message is the end of its audio, so the
figures do not depend on the machine's speed. A word is identified by its position in the stream. The last word of a
partial may grow letter by letter; that does not count as a change.

Source: the share of final words is the unstable partial word ratio of Shangguan et al. 2020 (arXiv:2006.01416).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True, slots=True)
class ShownWord:
    """Word as shown to a client; `end_s` is its end in the stream."""

    text: str
    end_s: float


@dataclass(frozen=True, slots=True)
class View:
    """Message to a client: words of the open segment at `cursor_s`, the first `stable` of them marked as stable."""

    cursor_s: float
    words: tuple[ShownWord, ...]
    stable: int
    final: bool


@dataclass(slots=True)
class _Token:
    text: str
    first_s: float
    text_s: float  # when it was shown with this text
    stable_s: float | None = None


@dataclass(slots=True)
class Stability:
    """Counts and delays over any number of streams; `follow` adds one."""

    shown: int = 0  # words shown; another text at the same position counts again
    changed: int = 0  # of `shown`, replaced or removed
    inside: int = 0  # of `changed`, not the last word shown
    broken: int = 0  # changes of words that were marked stable
    finals: int = 0
    shown_to_stable_s: list[float] = field(default_factory=list)
    end_to_stable_s: list[float] = field(default_factory=list)
    end_to_shown_s: list[float] = field(default_factory=list)  # with its final text

    def follow(self, views: Iterable[View]) -> None:
        """Add the messages of one stream."""
        tokens: list[_Token] = []  # words shown and not final
        for view in views:
            self._show(tokens, view)
            for token in tokens[: len(view.words) if view.final else view.stable]:
                token.stable_s = view.cursor_s if token.stable_s is None else token.stable_s
            if view.final:
                self._settle(tokens, view.words)
        self._take_back(tokens)

    def figures(self) -> dict[str, object]:
        """Results for JSON: shares between 0 and 1, delays in milliseconds of audio, None if nothing was shown."""
        return {
            "shown_words": self.shown,
            "changed_words": self.changed,
            "changed_share": _share(self.changed, self.shown),
            "changed_per_final_word": _share(self.changed, self.finals),
            "changed_before_last_share": _share(self.inside, self.shown),
            "stable_words_changed": self.broken,
            "final_words": self.finals,
            "shown_to_stable_ms": _spread(self.shown_to_stable_s),
            "word_end_to_stable_ms": _spread(self.end_to_stable_s),
            "word_end_to_shown_ms": _spread(self.end_to_shown_s),
        }

    def _show(self, tokens: list[_Token], view: View) -> None:
        for index, word in enumerate(view.words):
            if index == len(tokens):
                tokens.append(self._new(word, view))
            elif tokens[index].text != word.text:
                self._replace(tokens, index, word, view)
        if not view.final:  # words missing from a final may appear in the next segment
            self._take_back(tokens[len(view.words) :])
            del tokens[len(view.words) :]

    def _replace(self, tokens: list[_Token], index: int, word: ShownWord, view: View) -> None:
        token = tokens[index]
        self.broken += token.stable_s is not None
        last = index == len(tokens) - 1
        if last and word.text.startswith(token.text):
            token.text, token.text_s = word.text, view.cursor_s
            return
        self.changed += 1
        self.inside += not last
        tokens[index] = self._new(word, view)

    def _new(self, word: ShownWord, view: View) -> _Token:
        self.shown += 1
        return _Token(word.text, view.cursor_s, view.cursor_s)

    def _take_back(self, tokens: Sequence[_Token]) -> None:
        """Count words that are no longer shown as changed."""
        self.changed += len(tokens)
        self.inside += max(0, len(tokens) - 1)
        self.broken += sum(token.stable_s is not None for token in tokens)

    def _settle(self, tokens: list[_Token], words: Sequence[ShownWord]) -> None:
        for token, word in zip(tokens, words, strict=False):
            assert token.stable_s is not None
            self.shown_to_stable_s.append(token.stable_s - token.first_s)
            self.end_to_stable_s.append(token.stable_s - word.end_s)
            self.end_to_shown_s.append(token.text_s - word.end_s)
        self.finals += len(words)
        del tokens[: len(words)]


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def _spread(seconds: Sequence[float]) -> dict[str, float] | None:
    if not seconds:
        return None
    return {
        "mean": round(float(np.mean(seconds)) * 1e3, 1),
        "p50": round(float(np.percentile(seconds, 50)) * 1e3, 1),
        "p95": round(float(np.percentile(seconds, 95)) * 1e3, 1),
    }
