"""Settled words: the number of words that an interim shows with `interim_stability=high`. Pure; time is audio time.

The last word of an interim is often the beginning of a longer word, and earlier words may still change with it. A word
is shown once hypotheses with enough of the total weight agree on all words up to it. The longer a word is unchanged,
the less weight it needs. A word that is shown stays until the text changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from model.ctc.words import Word
from server.recognition.saved_state import SavedSettled

# Seconds that a word has stood at least, and the share of the weight that it needs then: the last word, and others.
# Source: docs/decisions/segments.md, "Show only settled words where a client asks".
LAST = ((0.4, 0.6), (0.32, 0.7), (0.24, 0.8), (0.16, 0.92))
FOLLOWED = ((0.48, 0.55), (0.16, 0.7), (0.0, 0.8))
ROUNDING_S = 0.02  # step times are floating-point sums, so they may be slightly below a multiple


class SettledWords:
    """The settled words of one open segment."""

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
