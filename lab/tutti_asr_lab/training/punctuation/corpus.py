"""Labeled text as arrays, and training examples cut out of it: finals of a few sentences with recognition errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from model.errors import TrainingError
from model.punctuation.marks import ENDS, NONE, parse_word
from model.punctuation.weights import UNKNOWN, Rows, Vocabulary
from model.text.files import read_text

Ints = NDArray[np.int64]

LONGEST = 64  # words of a final: half a minute of speech
HELD_OUT = 0.03  # fraction at the end of each text, for validation
IGNORED = -100  # label without loss


@dataclass(frozen=True, slots=True)
class Text:
    """Text of N words: rows (N, 3), marks (N,), capitals (N,)."""

    name: str
    rows: Rows
    marks: Ints
    capitals: Ints

    @property
    def starts(self) -> Ints:
        """Indices of the first words of sentences."""
        ends = np.flatnonzero(np.isin(self.marks, ENDS))
        return np.concatenate([[0], ends[:-1] + 1]) if ends.size else np.zeros(1, np.int64)


@dataclass(frozen=True, slots=True)
class Final:
    """Words of one final and their labels; the last mark is `IGNORED` if the final ends inside a sentence."""

    rows: Rows
    marks: Ints
    capitals: Ints


def read_tokens(path: Path) -> list[str]:
    """Read the tokens of a file written by `tutti_asr_lab.training.punctuation.texts`. Raises: TrainingError."""
    return read_text(path, TrainingError).split()


def most_frequent(texts: Iterable[Iterable[str]], size: int) -> Vocabulary:
    """Vocabulary of the most frequent words; equally frequent ones in alphabetical order."""
    tokens: Counter[str] = Counter()
    for text in texts:
        tokens.update(text)
    counts: Counter[str] = Counter()
    for token, count in tokens.items():
        counts[parse_word(token).word] += count
    return Vocabulary.of([word for word, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:size]])


def as_text(name: str, tokens: Sequence[str], vocabulary: Vocabulary) -> Text:
    """Convert tokens to arrays; each distinct token is parsed once."""
    numbers = {token: number for number, token in enumerate(dict.fromkeys(tokens))}
    words = [parse_word(token) for token in numbers]
    order = np.fromiter((numbers[token] for token in tokens), np.int64, len(tokens))
    marks = np.array([word.mark for word in words], np.int64)
    capitals = np.array([word.capital for word in words], np.int64)
    return Text(name, vocabulary.rows([word.word for word in words])[order], marks[order], capitals[order])


class Sampler:
    """Sampler of finals from texts, each text with a weight."""

    def __init__(self, texts: Sequence[Text], shares: Mapping[str, float], confusions: Confusions, seed: int) -> None:
        """Set up the sampler. Texts that are not in `shares` divide the rest in proportion to their words."""
        rest = 1.0 - sum(shares.values())
        words = sum(len(text.marks) for text in texts if text.name not in shares)
        weights = [shares.get(text.name, rest * len(text.marks) / words) for text in texts]
        self._texts, self._weights = list(texts), np.array(weights) / sum(weights)
        self._starts = [text.starts for text in texts]
        self._confusions = confusions
        self._rng = np.random.default_rng(seed)

    def draw(self, count: int) -> list[Final]:
        """Draw finals, sorted by length."""
        chosen = self._rng.choice(len(self._texts), count, p=self._weights)
        finals = [self._confusions.confuse(self._final(int(i)), self._rng) for i in chosen]
        return sorted(finals, key=lambda final: len(final.marks))

    def _final(self, index: int) -> Final:
        text, starts, rng = self._texts[index], self._starts[index], self._rng
        which = int(rng.integers(len(starts)))
        start = int(starts[which])
        sentences = int(rng.geometric(0.45))
        stop = int(starts[which + sentences]) if which + sentences < len(starts) else len(text.marks)
        if rng.random() < 0.1:  # starts inside a sentence, after a cut
            start = int(rng.integers(start, stop))
        if rng.random() < 0.1:  # ends inside a sentence, at a pause or a cut
            stop = int(rng.integers(start + 1, stop + 1))
        stop = min(stop, start + LONGEST)
        marks = text.marks[start:stop].copy()
        if marks[-1] not in ENDS:
            marks[-1] = IGNORED
        return Final(text.rows[start:stop], marks, text.capitals[start:stop])


class Confusions:
    """Simulation of recognition errors: similarly spelled words, random words, unknown words, deleted words."""

    def __init__(self, vocabulary: Vocabulary, texts: Sequence[Text]) -> None:
        words = vocabulary.words
        self._rows = np.concatenate([np.zeros((1, 3), np.int32), vocabulary.rows(words)])  # (V + 1, 3)
        self._orders = [np.argsort(np.array(keys)) for keys in (words, [word[::-1] for word in words])]
        self._places = [np.argsort(order) for order in self._orders]
        self._pool = np.concatenate([text.rows[:: max(1, len(text.rows) // 20_000)] for text in texts])

    def confuse(self, final: Final, rng: np.random.Generator, rate: float | None = None) -> Final:
        """Change a fraction of the words; by default half of the finals stay, the others get 3 % to 35 % errors."""
        if rate is None:
            rate = 0.0 if rng.random() < 0.5 else float(rng.uniform(0.03, 0.35))
        wrong = np.flatnonzero(rng.random(len(final.marks)) < rate)
        if not wrong.size:
            return final
        rows, marks, capitals = final.rows.copy(), final.marks.copy(), final.capitals.copy()
        kept = np.ones(len(marks), bool)
        for i, kind in zip(wrong.tolist(), rng.random(len(wrong)).tolist(), strict=True):
            if kind < 0.45:
                rows[i] = self._alike(int(rows[i, 0]), rng)
            elif kind < 0.65:
                rows[i] = self._pool[rng.integers(len(self._pool))]
            elif kind < 0.8:
                rows[i, 0] = UNKNOWN
            elif 0 < i < len(marks) - 1:
                kept[i] = False
                if marks[i - 1] == NONE:
                    marks[i - 1] = marks[i]
        capitals[wrong] = IGNORED  # the capital of a replaced word is meaningless
        return Final(rows[kept], marks[kept], capitals[kept])

    def _alike(self, row: int, rng: np.random.Generator) -> Rows:
        """Random neighbor of a word in alphabetical order, read forward or backward."""
        if row == UNKNOWN:
            found: Rows = self._pool[rng.integers(len(self._pool))]
            return found
        which = int(rng.integers(2))
        order, place = self._orders[which], int(self._places[which][row - 1])
        near = min(max(place + int(rng.integers(-4, 5)), 0), len(order) - 1)
        alike: Rows = self._rows[int(order[near]) + 1]
        return alike
