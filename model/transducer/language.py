"""A word n-gram model over the pieces of a transducer, for its beam search (shallow fusion).

A word scores when it is complete. Before that its score is the best unigram with the same beginning, so that rare words
are not dropped late. Words are compared by letters and digits alone: a piece may have capitals and marks.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from model.ctc.bias import NO_BIAS, Bias
from model.ctc.interface import digest_of
from model.ctc.tokens import Tokens
from model.ctc.weights import DecodingWeights
from model.errors import LanguageModelError
from model.lm.language_model import LanguageModel
from model.lm.trie import SPECIAL_WORDS, UNKNOWN_ID

WEIGHTS = DecodingWeights(lm_weight=0.3, word_bonus=1.0, unknown_cost=2.0, unknown_letter_cost=0.25)
"""Weights where no file has others: estimated, not tuned. A prediction network knows likely words already, and a word
of ten letters that the model does not know costs less than a symbol of which the network is sure (0.99): it stays."""
BEGINNINGS = 1 << 16  # of words whose best score is kept
_OTHERS = re.compile(r"[^\w']|_")
LAST = chr(0x10FFFF)  # after every letter


class LanguageState(NamedTuple):
    """Place of a text: node of the model's trie, letters of the open word, and their score until it is complete."""

    context: int
    letters: str = ""
    score: float = 0.0


NO_LANGUAGE = LanguageState(0)


class PieceLanguage:
    """One language model with the pieces of one acoustic model; shared by all streams."""

    def __init__(self, lm: LanguageModel, tokens: Tokens, weights: DecodingWeights = WEIGHTS) -> None:
        """Raises: LanguageModelError for symbols that are no letters, or if none of them begins a word."""
        if tokens.spelling == "byte-level BPE":
            raise LanguageModelError("its symbols are bytes (byte-level BPE), which are no letters of words")
        unigrams = lm.trie.log_prob[1 : 1 + len(lm.words)]
        known = {}
        for number in np.argsort(unigrams, kind="stable").tolist():  # ascending: a likelier word overwrites
            if lm.words[number] not in SPECIAL_WORDS and (letters := letters_of(lm.words[number])):
                known[letters] = number
        self._lm, self._weights, self._known = lm, weights, known
        self._sorted = sorted(known)
        self._unigrams = unigrams[[known[letters] for letters in self._sorted]]
        self._starts, self._ends = tokens.starts, tokens.ends
        self._letters = [letters_of(text.decode("utf-8", "ignore")) for text in tokens.texts]
        self._letters[tokens.blank] = ""
        self._best = lru_cache(maxsize=BEGINNINGS)(self._best_unigram)
        self._score = lru_cache(maxsize=BEGINNINGS)(lm.follow)
        self._words_of = lru_cache(maxsize=64)(beginnings_of)
        if not any(letters and self._best(letters) is not None for letters in self._letters):
            raise LanguageModelError("no symbol of the model begins one of its words")

    @property
    def digest(self) -> str:
        """Digest of everything that scores depend on."""
        return digest_of(self.lm_digest, repr(self._weights))

    @property
    def lm_digest(self) -> str:
        """Digest of the language model."""
        return self._lm.digest or digest_of(*self._lm.words)

    @property
    def contexts(self) -> int:
        """Number of nodes of the model's trie."""
        return len(self._lm.trie.word)

    def after(self, symbols: Sequence[int]) -> LanguageState:
        """Return the state after the first symbols of a text."""
        state = LanguageState(self._lm.start_state)
        for symbol in symbols:
            state, _ = self.follow(state, symbol, NO_BIAS)
        return state

    def follow(self, state: LanguageState, symbol: int, bias: Bias) -> tuple[LanguageState, float]:
        """Return the state after a symbol, and by how much the score changes.

        Words of key terms cost nothing where the model does not know them.
        """
        terms = self._words_of(bias.phrases)
        before, score = state.score, 0.0
        if self._starts[symbol] and state.letters:
            state, score = self._closed(state, terms)
            before, score = 0.0, score - before
        if letters := self._letters[symbol]:
            written = state.letters + letters
            best = self._best(written)
            ahead = self._unknown(written, terms) if best is None else self._weights.lm_weight * best
            state = LanguageState(state.context, written, self._weights.word_bonus + ahead)
            before, score = state.score, score + state.score - before
        if self._ends[symbol] and state.letters:
            state, closing = self._closed(state, terms)
            score += closing - before
        return state, score

    def ending(self, state: LanguageState, bias: Bias) -> float:
        """Return by how much the score changes if the open word is complete."""
        return self._closed(state, self._words_of(bias.phrases))[1] - state.score if state.letters else 0.0

    def _closed(self, state: LanguageState, terms: frozenset[str]) -> tuple[LanguageState, float]:
        """Return the state after the open word, and the score of that word."""
        number = self._known.get(state.letters)
        log_prob, context = self._score(state.context, UNKNOWN_ID if number is None else number)
        score = self._unknown(state.letters, terms) if number is None else self._weights.lm_weight * log_prob
        return LanguageState(context), self._weights.word_bonus + score

    def _unknown(self, letters: str, terms: frozenset[str]) -> float:
        if letters in terms:
            return 0.0
        return -self._weights.unknown_cost - self._weights.unknown_letter_cost * len(letters)

    def _best_unigram(self, letters: str) -> float | None:
        """Return the log-probability of the likeliest word with this beginning; None without one."""
        first, last = bisect_left(self._sorted, letters), bisect_left(self._sorted, letters + LAST)
        return float(self._unigrams[first:last].max()) if first < last else None


def letters_of(text: str) -> str:
    """Return the letters and digits of a word, small, with its apostrophes."""
    return _OTHERS.sub("", text.lower().replace("’", "'"))


def beginnings_of(phrases: tuple[tuple[str, float], ...]) -> frozenset[str]:
    """Return the beginnings of all words of key terms of positive weight."""
    words = [letters_of(word) for phrase, weight in phrases if weight > 0 for word in phrase.split()]
    return frozenset(word[:end] for word in words for end in range(1, len(word) + 1))
