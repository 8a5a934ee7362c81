"""What `redact` can mask: kinds of numbers, their labels, and the languages in which they are found. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import StrEnum

import phonenumbers
from stdnum import luhn
from stdnum.cn import ric
from stdnum.exceptions import ValidationError
from stdnum.us import ssn

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
    known = {_PRIMARY.get(tag.replace("_", "-").partition("-")[0].casefold()) for tag in languages}
    if not known or None in known:
        return None
    return NumberLanguage.CHINESE if NumberLanguage.CHINESE in known else NumberLanguage.ENGLISH


CARD = "CREDIT_CARD"
NUMBER = "NUMBER"  # any other
CARD_LENGTHS = range(13, 20)  # Source: ISO/IEC 7812
CARD_SIZES = (15, 16, 19)  # common ones: what follows in the same number may be an expiry date
PHONE_LENGTHS = range(7, 16)  # Source: E.164, and local numbers without area code
REGIONS = {NumberLanguage.ENGLISH: "US", NumberLanguage.CHINESE: "CN"}  # of telephone numbers without a country code
RESIDENT = 18  # signs of a resident identity number. Source: GB 11643-1999


def label_of(digits: str, kinds: Collection[Redaction], language: NumberLanguage) -> str:
    """Return the label of a number, of these kinds if it has their form, otherwise `NUMBER`."""
    if Redaction.SSN in kinds and language is NumberLanguage.CHINESE and _is_resident(digits):
        return "SSN"
    if Redaction.PCI in kinds and _has_card(digits):
        return CARD
    if Redaction.SSN in kinds and ssn.is_valid(digits):
        return "SSN"
    if Redaction.PHONE in kinds and len(digits) in PHONE_LENGTHS and _may_be_phone(digits, REGIONS[language]):
        return "PHONE_NUMBER"
    return NUMBER


def _is_resident(digits: str) -> bool:
    """Whether this is a resident identity number by its date of birth and its check digit (ISO 7064, MOD 11-2).

    `ric.is_valid` looks the place up too, in a file: not on the event loop.
    """
    if len(digits) != RESIDENT or not digits[:-1].isdecimal():
        return False
    try:
        ric.get_birth_date(digits)
    except ValidationError:
        return False
    return ric.calc_check_digit(digits) == digits[-1]


def _has_card(digits: str) -> bool:
    """Whether digits are a valid card number, or begin or end with one."""
    pieces = {digits, *(digits[:size] for size in CARD_SIZES), *(digits[-size:] for size in CARD_SIZES)}
    return any(len(piece) in CARD_LENGTHS and luhn.is_valid(piece) for piece in pieces)


def _may_be_phone(digits: str, region: str) -> bool:
    try:
        return bool(phonenumbers.is_possible_number(phonenumbers.parse(digits, region)))
    except phonenumbers.NumberParseException:
        return False
