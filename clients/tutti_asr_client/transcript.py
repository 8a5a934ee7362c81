"""The text of one channel: the finals so far and the current partial."""

from __future__ import annotations

from tutti_asr_client.delivery import TOLERANCE_S
from tutti_asr_client.messages import Results, Word, joined, shown, without_words_from


class Transcript:
    """Joins finals, and separates the stable and unstable words of the partial after them."""

    def __init__(self, channel: int = 0) -> None:
        self._channel = channel
        self._finals: list[Results] = []
        self._partial: tuple[str, ...] = ()
        self._stable = 0

    def add(self, results: Results) -> None:
        """Add one message; those of other channels are ignored. A correction replaces all words from its start on."""
        if results.channel_index[0] != self._channel:
            return
        if results.correction:
            finals = [final for final in self._finals if final.start < results.start - TOLERANCE_S]
            finals[-1:] = [without_words_from(final, results.start) for final in finals[-1:]]
            self._finals = [*finals, results]
            return
        if results.is_final:
            self._finals.append(results)
            self._partial, self._stable = (), 0
            return
        words = tuple(map(shown, results.words)) or tuple(results.text.split())
        stated = None if results.tutti is None else results.tutti.stable_words
        self._stable = min(len(words), self._agreed(words) if stated is None else stated)
        self._partial = words

    @property
    def text(self) -> str:
        """The text of all finals."""
        return joined(final.text for final in self._finals if final.text)

    @property
    def words(self) -> tuple[Word, ...]:
        """The words of all finals, with stream times."""
        return tuple(word for final in self._finals for word in final.words)

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
