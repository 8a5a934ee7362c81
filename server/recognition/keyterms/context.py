"""Key terms from what another speaker of a conversation said: the words that a language model finds rare. Pure."""

from __future__ import annotations

import math

from model.ctc.bias import LETTERS_ALONE
from model.ctc.words import Decoder, RatesWords
from model.text.letters import unspellable
from model.text.spelled import spoken

CONTEXT_S = 30.0  # of audio: an answer that repeats a name comes within this time
MAX_WORDS = 100  # of a text that count, the last ones
MIN_LETTERS = 3  # of a term: shorter ones cause more errors than they correct
MAX_LETTERS = 24
RARE = -11.5
"""Log-probability below which a word counts as rare: the 8,700 commonest words of the shipped English model are not.
With -10.5 and -12.5 as many names are found. Source: tests/server/recognition/keyterms/test_context_recall.py."""


def rare_terms(text: str, decoder: Decoder) -> tuple[str, ...]:
    """Return the words of a text that are rare for a decoder, each once, in the order in which they were said last.

    All are rare for one that does not rate words. Words with digits or with letters that no model spells are left out.
    """
    log_prob = decoder.word_log_prob if isinstance(decoder, RatesWords) else _unknown
    tokens = [token for token in text.split()[-MAX_WORDS:] if not _unusable(token)]
    terms: dict[str, None] = {}
    for said in spoken(" ".join(tokens)).split():
        word = said.removesuffix("'s")
        if MIN_LETTERS <= len(word) <= MAX_LETTERS and LETTERS_ALONE.issuperset(word) and log_prob(word) < RARE:
            terms.pop(word, None)
            terms[word] = None
    return tuple(terms)


def _unknown(word: str) -> float:  # noqa: ARG001 - a decoder's
    return -math.inf


def _unusable(token: str) -> bool:
    return any(map(str.isdigit, token)) or bool(unspellable(token))
