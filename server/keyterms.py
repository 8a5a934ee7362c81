"""The terms that a connection wants recognised: phrases, weighted words, and the decoder's bias made of both. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from model.ctc.bias import NO_BIAS, Bias, BiasError

Keyword = tuple[str, float | None]

# The automaton of so much is built in 10 ms, on the event loop. The service takes 500 tokens, which is about as much.
MAX_TERMS = 200
MAX_CHARACTERS = 2_500


@dataclass(frozen=True, slots=True)
class Keyterms:
    """`phrases` as the client gave them; `keywords` are the older form, each with its boost, None for the default."""

    phrases: tuple[str, ...] = ()
    keywords: tuple[Keyword, ...] = ()
    bias: Bias = NO_BIAS

    @classmethod
    def of(cls, phrases: Sequence[str], keywords: Sequence[Keyword] = ()) -> Keyterms:
        """Bias towards all of them. Raises: BiasError, whose message is meant for the client."""
        if not phrases and not keywords:
            return NO_KEYTERMS
        terms = [*((phrase, None) for phrase in phrases), *keywords]
        if len(terms) > MAX_TERMS:
            raise BiasError(f"{len(terms)} key terms, at most {MAX_TERMS}")
        if (characters := sum(len(term) for term, _ in terms)) > MAX_CHARACTERS:
            raise BiasError(f"key terms of {characters} characters together, at most {MAX_CHARACTERS}")
        return cls(tuple(phrases), tuple(keywords), Bias.of(terms))

    def replaced(self, phrases: Sequence[str]) -> Keyterms:
        """The same keywords with other phrases. Raises: BiasError."""
        return Keyterms.of(phrases, self.keywords)


NO_KEYTERMS = Keyterms()
