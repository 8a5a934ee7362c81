"""Key terms: phrases and weighted words, the decoder bias built from them, and a rate limit on changes. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from model.ctc.bias import LETTERS_ALONE, MAX_SHOWN, NO_BIAS, Bias, BiasError
from model.ctc.interface import ChecksTerms, Decoder, RatesWords
from model.text.letters import is_spellable, unspellable, without_ideographs
from model.text.spelled import spoken
from server.errors import BadParameter, KeytermsTooOften

Keyword = tuple[str, float | None]

# An automaton of this size takes 7 ms: `server.coordination.term_building`. Deepgram takes 500 tokens, about as much.
MAX_TERMS = 200
MAX_CHARACTERS = 2_500
READ_HINTS = 2 * MAX_TERMS  # a check takes 5 us on the event loop
MAX_HINT_WORDS = 20
MAX_CONTEXT_TERMS = 40  # from what other speakers said
CHARACTERS_PER_S = 500.0  # of audio: 1 to 2 ms of building, about what decoding that second takes


@dataclass(frozen=True, slots=True)
class Keyterms:
    """Key terms: `phrases` as the client gave them, `keywords` in the older form with a boost, None for the default."""

    phrases: tuple[str, ...] = ()
    keywords: tuple[Keyword, ...] = ()
    bias: Bias = NO_BIAS
    context: tuple[str, ...] = ()  # terms from what other speakers said, after the client's own

    @classmethod
    def of(cls, phrases: Sequence[str], keywords: Sequence[Keyword] = (), context: Sequence[str] = ()) -> Keyterms:
        """Return the bias towards all of them, and towards the last terms of `context` that fit.

        Raises: BiasError, whose message is meant for the client.
        """
        context = fitting(context, phrases, keywords)
        if not (phrases or keywords or context):
            return NO_KEYTERMS
        terms = (*((phrase, None) for phrase in (*context, *phrases)), *keywords)  # the last of equal ones counts
        return cls(tuple(phrases), tuple(keywords), _bias_of(terms), context)

    @classmethod
    def of_request(cls, parameter: str, phrases: Iterable[str], keywords: Sequence[Keyword] = ()) -> Keyterms:
        """Bias towards a request's terms, blank phrases left out. Raises: BadParameter, which names the parameter."""
        terms = [phrase.strip() for phrase in phrases if phrase.strip()]
        for term in terms:
            if term.startswith("[") and term.endswith("]"):  # deepgram-sdk 5.3 sends a list so
                raise BadParameter(
                    f"{parameter}: {term[:MAX_SHOWN]!r} is a list; send the parameter once for each term"
                )
        try:
            return cls.of(terms, keywords)
        except BiasError as error:
            raise BadParameter(f"{parameter}: {error}") from error

    def replaced(self, phrases: Sequence[str]) -> Keyterms:
        """Return a copy with other phrases. Raises: BiasError."""
        return Keyterms.of(phrases, self.keywords, self.context)

    def context_with(self, terms: Sequence[str]) -> tuple[str, ...]:
        """Return the context with these terms appended as the newest; the oldest are dropped if there is no room."""
        older = [term for term in self.context if term not in terms]
        return fitting((*older, *terms), self.phrases, self.keywords)

    def in_context(self, context: Sequence[str]) -> Keyterms:
        """Return the client's terms with this context."""
        return Keyterms.of(self.phrases, self.keywords, context)

    @property
    def without_context(self) -> Keyterms:
        """Return the client's terms without context."""
        return self.in_context(()) if self.context else self


@lru_cache(maxsize=64)
def _bias_of(terms: tuple[Keyword, ...]) -> Bias:
    return Bias.of(terms)


NO_KEYTERMS = Keyterms()


def check_speakable(keyterms: Keyterms, decoder: Decoder) -> None:
    """Check that the decoder can recognize the client's own terms. Raises: BiasError, whose message is meant for it."""
    lost = unspeakable(keyterms.without_context.bias, decoder)
    if lost:
        raise BiasError(
            f"key term {lost[0][:MAX_SHOWN]!r} cannot be recognized by this model: it has no symbols for a word of it; "
            "leave it out"
        )


def unspeakable(bias: Bias, decoder: Decoder) -> tuple[str, ...]:
    """Return the terms that the decoder cannot recognize."""
    return decoder.unspeakable(bias) if isinstance(decoder, ChecksTerms) else ()


def checked_size(phrases: Sequence[str], keywords: Sequence[Keyword]) -> int:
    """Return the total number of characters, which determines the cost of building. Raises: BiasError above either
    limit.
    """
    if (count := len(phrases) + len(keywords)) > MAX_TERMS:
        raise BiasError(f"{count} key terms, at most {MAX_TERMS}")
    if (characters := sum(map(len, phrases)) + sum(len(word) for word, _ in keywords)) > MAX_CHARACTERS:
        raise BiasError(f"key terms of {characters} characters together, at most {MAX_CHARACTERS}")
    return characters


def fitting(terms: Sequence[str], phrases: Sequence[str], keywords: Sequence[Keyword] = ()) -> tuple[str, ...]:
    """Return the last context terms that fit in addition to the client's terms. Raises: BiasError."""
    characters = MAX_CHARACTERS - checked_size(phrases, keywords)
    count = min(MAX_CONTEXT_TERMS, MAX_TERMS - len(phrases) - len(keywords))
    newest: list[str] = []
    for term in reversed(terms[-count:] if count > 0 else ()):
        characters -= len(term)
        if characters < 0:
            break
        newest.append(term)
    return tuple(reversed(newest))


def usable_hints(phrases: Sequence[str]) -> tuple[str, ...]:
    """Return the phrases that can be spelled, as many as the limits of key terms allow, of the first `READ_HINTS`."""
    phrases_left: list[str] = []
    characters = 0
    for phrase in phrases[:READ_HINTS]:
        if len(phrase.split()) > MAX_HINT_WORDS or characters + len(phrase) > MAX_CHARACTERS:
            continue
        if unspellable(phrase) or not spoken(phrase):
            continue
        phrases_left.append(phrase)
        characters += len(phrase)
        if len(phrases_left) == MAX_TERMS:
            break
    return tuple(phrases_left)


class ChangeAllowance:
    """Limit on changes of key terms, in characters, so that one connection cannot block the event loop for the others.

    A full set at once, then `CHARACTERS_PER_S` for each second of the connection's audio. The limit depends on audio
    time, not on the clock, so that the same frames get the same answers at any speed.
    """

    def __init__(self) -> None:
        self._left = float(MAX_CHARACTERS)
        self._at_s = 0.0

    def saved(self) -> tuple[float, float]:
        """Return the characters left and the stream time of that."""
        return self._left, self._at_s

    def restore(self, saved: tuple[float, float]) -> None:
        """Continue from a snapshot."""
        self._left, self._at_s = saved

    def spend(self, characters: int, audio_s: float) -> None:
        """Pay for a change at this stream time. Raises: KeytermsTooOften; nothing is paid then."""
        self._left = min(MAX_CHARACTERS, self._left + max(0.0, audio_s - self._at_s) * CHARACTERS_PER_S)
        self._at_s = audio_s
        if characters > self._left:
            wait_s = (characters - self._left) / CHARACTERS_PER_S
            raise KeytermsTooOften(f"key terms change too often: send these again after {wait_s:.1f} s more of audio")
        self._left -= characters


CONTEXT_S = 30.0  # of audio: an answer that repeats a name comes within this time
MAX_WORDS = 100  # of a text that count, the last ones
READ_CHARACTERS = 2_500  # of a text that are read, the last ones: less than 1 ms
READING_SHARE = 0.1  # cost of reading a character of a text, as a share of that of a character of a key term
MIN_LETTERS = 3  # of a term: shorter ones cause more errors than they correct
MAX_LETTERS = 24
RARE = -11.5
"""Log-probability below which a word counts as rare: the 8,700 commonest words of the shipped English model are not.
With -10.5 and -12.5 as many names are found. Source: tests/lab/test_context_recall.py."""


def rare_terms(text: str, decoder: Decoder) -> tuple[str, ...]:
    """Return the words of a text that are rare for a decoder, each once, in the order in which they were said last.

    Only the last `MAX_WORDS` words within the last `READ_CHARACTERS` characters count. For a decoder that does not rate
    words, all are rare. Words with digits, or with letters that are not folded to a-z, are left out.
    """
    log_prob = decoder.word_log_prob if isinstance(decoder, RatesWords) else _unknown
    read = without_ideographs(text[-READ_CHARACTERS - 1 :])
    words = read.split()
    if len(read) > READ_CHARACTERS and not read[0].isspace():
        del words[0]  # may be the end of a longer one
    tokens = [token for token in words[-MAX_WORDS:] if is_spellable(token) and not any(map(str.isdigit, token))]
    terms: dict[str, None] = {}
    for said in spoken(" ".join(tokens)).split():
        word = said.removesuffix("'s")
        if MIN_LETTERS <= len(word) <= MAX_LETTERS and LETTERS_ALONE.issuperset(word) and log_prob(word) < RARE:
            terms.pop(word, None)
            terms[word] = None
    return tuple(terms)


def _unknown(word: str) -> float:  # noqa: ARG001 - a decoder's
    return -math.inf
