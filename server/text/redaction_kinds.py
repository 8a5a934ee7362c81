"""What `redact` can mask: kinds of numbers, and the languages in which they are found."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from server.errors import BadParameter

SHOWN = 64  # longest excerpt of client text in an error


class Redaction(StrEnum):
    """Values of `redact`."""

    PCI = "pci"
    SSN = "ssn"  # national identity numbers: in Mandarin those of residents of China too
    PHONE = "phone_number"
    NUMBERS = "numbers"
    AGGRESSIVE = "aggressive_numbers"


class NumberLanguage(StrEnum):
    """Languages whose number words are known."""

    ENGLISH = "en"
    CHINESE = "zh"  # Mandarin, with English words among it


LONG = 7  # digits of a long number: those of a card, an identity or a telephone
SHORTEST = {Redaction.PCI: 12, Redaction.SSN: 8, Redaction.PHONE: 7, Redaction.NUMBERS: 3, Redaction.AGGRESSIVE: 1}
"""Digits from which a finished number is masked: one fewer than a card or social security number has, because one may
have been missed."""
_ALIASES = {"true": Redaction.NUMBERS, "1": Redaction.NUMBERS, "credit_card": Redaction.PCI}
_PRIMARY = {"en": NumberLanguage.ENGLISH, "zh": NumberLanguage.CHINESE, "cmn": NumberLanguage.CHINESE}


def kinds_of(values: Iterable[str]) -> frozenset[Redaction]:
    """Return the kinds that values of `redact` request; "false" requests none. Raises: BadParameter."""
    kinds: set[Redaction] = set()
    for value in values:
        named = value.strip().casefold()
        if named in ("false", "0"):
            continue
        if named not in _ALIASES and named not in set(Redaction):
            raise BadParameter(
                f"redact: {value[:SHOWN]!r} is not supported by this server; must be one of {', '.join(Redaction)}"
            )
        kinds.add(_ALIASES.get(named) or Redaction(named))
    return frozenset(kinds)


def number_language(languages: Iterable[str]) -> NumberLanguage | None:
    """Return the language whose number words cover these language tags; None if one is unknown, or there is no tag."""
    found = {_PRIMARY.get(tag.replace("_", "-").partition("-")[0].casefold()) for tag in languages}
    if not found or None in found:
        return None
    return NumberLanguage.CHINESE if NumberLanguage.CHINESE in found else NumberLanguage.ENGLISH
