"""The text of one channel: the finals so far and the current partial."""

from __future__ import annotations

from tutti_asr_client.joining import joined
from tutti_asr_client.messages import Results, Word, shown


class Transcript:
    """Joins finals, and separates the stable and unstable words of the partial after them."""

    def __init__(self, channel: int = 0) -> None:
        self._channel = channel
        self._texts: list[str] = []
        self._words: list[Word] = []
        self._partial: tuple[str, ...] = ()
        self._stable = 0

    def add(self, results: Results) -> None:
        """Add one message; those of other channels are ignored."""
        if results.channel_index[0] != self._channel:
            return
        if results.is_final:
            if results.text:
                self._texts.append(results.text)
            self._words.extend(results.words)
            self._partial, self._stable = (), 0
            return
        words = tuple(map(shown, results.words)) or tuple(results.text.split())
        stated = None if results.tutti is None else results.tutti.stable_words
        self._stable = min(len(words), self._agreed(words) if stated is None else stated)
        self._partial = words

    @property
    def text(self) -> str:
        """The text of all finals."""
        return joined(self._texts)

    @property
    def words(self) -> tuple[Word, ...]:
        """The words of all finals, with stream times."""
        return tuple(self._words)

    @property
    def stable(self) -> str:
        """The part of the current partial that is not expected to change."""
        return joined(self._partial[: self._stable])

    @property
    def unstable(self) -> str:
        """The rest of the current partial."""
        return joined(self._partial[self._stable :])

    def _agreed(self, words: tuple[str, ...]) -> int:
        """Estimate the stable words without the server's count: leading words that two partials have in common."""
        agreed = 0
        for old, new in zip(self._partial, words[:-1], strict=False):
            if old != new:
                break
            agreed += 1
        return agreed
