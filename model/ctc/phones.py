"""Pronunciations for a search over phones: trie of a language model's words, and key terms in phones."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from model.ctc.bias import Bias, Letters, TermAutomaton
from model.lexicon.lexicon import Lexicon
from model.lm.cache import SUFFIX, cache_dirs, kept
from model.lm.language_model import LanguageModel
from model.lm.pronounced import MOST_ALIKE, PhoneTrie, build_phones
from model.text.letters import is_ideograph

UNSPELLED = "[unk]"  # as in vosk
LEAST_SPOKEN = 0.5  # least share of words with pronunciations: below it the lexicon is for another language
MANY = 10_000
"""Least number of words for which the trie is cached: a smaller one is built as fast as it is read."""


@dataclass(frozen=True, eq=False)  # compared by identity, because it is a cache key
class PhoneLexicon:
    """Pronunciations of one language model's words in a model's phones; phone p is symbol p + 1 and column p."""

    phones: tuple[str, ...]
    lexicon: Lexicon
    trie: PhoneTrie

    @classmethod
    def of_model(
        cls, phones: Sequence[str], lexicon: Lexicon, lm: LanguageModel, path: Path | None = None
    ) -> PhoneLexicon:
        """Build the trie of all words of the language model, or load it from the cache next to its file `path`.

        Raises: ValueError if too few words have a pronunciation.
        """
        made_of = "\n".join([lm.digest, lexicon.digest, str(MOST_ALIKE), *phones])
        key = hashlib.sha256(made_of.encode()).hexdigest()[:16]
        places: list[Path] = []
        if path is not None and len(lm.words) >= MANY:
            places = [folder / f"{path.name}-{key}.phones{SUFFIX}" for folder in cache_dirs(path)]
        trie = kept(places, PhoneTrie.mapped, lambda: _trie(phones, lexicon, lm), PhoneTrie.save)
        plain = sum(word[0] != "<" for word in lm.words)
        spoken = len(np.unique(trie.words))
        if spoken < LEAST_SPOKEN * plain:
            raise ValueError(
                f"the lexicon pronounces {spoken} of its {plain} words, the others cannot be recognized: put "
                "NAME.lexicon.gz next to it (tutti_asr_lab.training.lexicon.table), or spell its words as it does"
            )
        return cls(tuple(phones), lexicon, trie)

    def of(self, bias: Bias) -> TermAutomaton:
        """Return the key terms in phones."""
        return _pronounced(self, bias)

    def spell(self, terms: TermAutomaton, symbols: Sequence[int]) -> str:
        """Return the word of a key term that has these phones, or that starts with them.

        `UNSPELLED` if there is none, for example in speech without a word of the language model.
        """
        phones = tuple(symbol - 1 for symbol in symbols)
        if phones in terms.spelled:
            return terms.spelled[phones]
        begun = (word for known, word in terms.spelled.items() if known[: len(phones)] == phones)
        return next(begun, UNSPELLED)


def _trie(phones: Sequence[str], lexicon: Lexicon, lm: LanguageModel) -> PhoneTrie:
    columns = {phone: column for column, phone in enumerate(phones)}
    unigrams = lm.trie.log_prob[1 : 1 + len(lm.words)]
    words = {word: _columns(lexicon.pronounce(word.lower()), columns) for word in lm.words if word[0] != "<"}
    most = len(words) if all(map(is_ideograph, words)) else MOST_ALIKE  # up to sixty characters share a syllable
    return build_phones(lm.words, unigrams, words, len(phones), most)


def _columns(spoken: Sequence[Sequence[str]], columns: dict[str, int]) -> tuple[Letters, ...]:
    """Return the pronunciations that consist of the model's phones, as columns."""
    return tuple(tuple(columns[phone] for phone in phones) for phones in spoken if all(p in columns for p in phones))


@lru_cache(maxsize=64)
def _pronounced(phone_lexicon: PhoneLexicon, bias: Bias) -> TermAutomaton:
    columns = {phone: column for column, phone in enumerate(phone_lexicon.phones)}
    return bias.in_phones(lambda word: _columns(phone_lexicon.lexicon.pronounce_term(word), columns))
