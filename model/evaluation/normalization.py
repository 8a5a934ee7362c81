"""Normalization of references and transcripts before they are compared, and writing that only one side uses.

`basic` suits every language. `english` is the English normalizer of Whisper, from the optional package
whisper-normalizer. That package's normalizer for other languages is not used: it removes vowel signs, as of Hindi.
Source: Radford et al. 2022 (arXiv:2212.04356), appendix C.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import Literal, TypedDict

from model.errors import require
from model.text.normalization import comparable, plain, straight_apostrophes

Normalization = Literal["none", "basic", "english"]
Normalizer = Callable[[str], str]
DEFAULT: Normalization = "basic"
DESCRIPTIONS: dict[Normalization, str] = {
    "none": "texts as written, without tags such as <unk>",
    "basic": "lower case, no punctuation",
    "english": "lower case, no punctuation, numbers as digits, contractions in full, American spelling, no uh or um",
}

_MARK = re.compile(r"(?<!\d)[^\w\s'’‘ʼ](?!\d)")  # points in numbers are no punctuation
_TYPOGRAPHIC = re.compile("[’‘ʼ]")
_DIGIT = re.compile(r"\d")


class OneSided(TypedDict):
    """Number of references and of transcripts that use a kind of writing."""

    references: int
    transcripts: int


def check_installed(name: Normalization) -> None:
    """Check that the package of a normalization is installed. Raises: MissingPackage."""
    if name == "english":
        require("whisper_normalizer", "evaluation", "--normalize english")


def normalizer(name: Normalization) -> Normalizer:
    """Return the function that normalizes a text. Raises: MissingPackage."""
    if name == "none":
        return plain
    if name == "basic":
        return comparable
    check_installed(name)
    from whisper_normalizer.english import EnglishTextNormalizer

    whisper = EnglishTextNormalizer()  # it expands I'm, but not I’m
    return lambda text: str(whisper(straight_apostrophes(plain(text)))).strip()


def one_sided(name: Normalization, references: Sequence[str], texts: Sequence[str]) -> dict[str, OneSided]:
    """Return the kinds of writing, in normalized texts, that references use and transcripts do not, or the reverse.

    Digits are listed if any recording has them on one side only; other kinds, if one side never has them. After
    `english` nothing is listed: what differs then was recognized wrongly.
    """
    by_kind: dict[str, OneSided] = {}
    for kind in _KINDS_AFTER[name]:
        uses = _KINDS[kind]
        pairs = [(uses(reference), uses(text)) for reference, text in zip(references, texts, strict=True)]
        left, right = sum(reference for reference, _ in pairs), sum(text for _, text in pairs)
        differ = any(reference != text for reference, text in pairs)
        if differ and (kind == "digits" or not left or not right):
            by_kind[kind] = OneSided(references=left, transcripts=right)
    return by_kind


def remedy(name: Normalization, kind: str) -> str:
    """Return the end of a warning about a kind of writing: what makes both sides alike."""
    if name == "none" and kind not in _KINDS_AFTER["basic"]:
        return "--normalize basic compares without them"
    return "--normalize english compares English texts without this difference"


def _has_accents(text: str) -> bool:
    """Whether a letter has an accent or another combining mark."""
    return not text.isascii() and any(unicodedata.category(c) == "Mn" for c in unicodedata.normalize("NFD", text))


_KINDS: dict[str, Callable[[str], bool]] = {
    "capitals": lambda text: any(map(str.isupper, text)),
    "small letters": lambda text: any(map(str.islower, text)),
    "punctuation": lambda text: _MARK.search(text) is not None,
    "typographic apostrophes": lambda text: _TYPOGRAPHIC.search(text) is not None,
    "apostrophes": lambda text: "'" in text,
    "accents": _has_accents,
    "digits": lambda text: _DIGIT.search(text) is not None,
}
_KINDS_AFTER: dict[Normalization, Sequence[str]] = {
    "none": tuple(_KINDS),
    "basic": ("apostrophes", "accents", "digits"),
    "english": (),
}
