"""Reader of the word files in this folder, which derives the inflected forms of their nouns and verbs.

Knows the spelling of regular English endings; knows neither grammar nor probabilities.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from model.text.files import read_lines

VOCABULARY_FILE = Path(__file__).parent / "vocabulary.txt"
COMMANDS_FILE = Path(__file__).parent / "commands.txt"

_HEADER = re.compile(r"^\[(\w+)\]$")
# One vowel between consonants, in a word of one syllable: the last consonant doubles ("stop", "stopped").
_DOUBLES = re.compile(r"^(?:[^aeiou]*|qu)[aeiou][^aeiouwxy]$")
_SIBILANT = ("s", "x", "z", "ch", "sh")
# Nouns in -o that take -es.
_O_ES = frozenset({"potato", "tomato", "hero", "volcano", "echo"})


@dataclass(frozen=True, slots=True)
class Noun:
    """Countable noun."""

    singular: str
    plural: str


@dataclass(frozen=True, slots=True)
class Verb:
    """Verb in its five forms."""

    base: str
    third: str
    past: str
    participle: str
    gerund: str


def read_sections(path: Path, separator: str) -> dict[str, tuple[str, ...]]:
    """Entries of each ``[section]`` of a word file; ``#`` starts a comment line.

    Args:
        path: the word file.
        separator: regular expression between two entries.
    """
    sections: dict[str, list[str]] = {}
    entries: list[str] = []
    for line in read_lines(path, ValueError):
        header = _HEADER.match(line)
        if header:
            entries = sections.setdefault(header[1], [])
        elif not line.startswith("#"):
            entries.extend(entry for entry in re.split(separator, line.strip()) if entry)
    # Without duplicates, which would be drawn twice as often.
    return {name: tuple(dict.fromkeys(words)) for name, words in sections.items()}


def parse_noun(entry: str) -> Noun:
    """Parse a noun written as ``singular[:plural]``."""
    singular, _, plural = entry.partition(":")
    return Noun(singular, plural or _with_s(singular))


def parse_verb(entry: str) -> Verb:
    """Parse a verb written as ``base[:past[:participle[:gerund]]]``."""
    base, *irregular = entry.split(":")
    past = irregular[0] if irregular else _with_ed(base)
    participle = irregular[1] if len(irregular) > 1 else past
    gerund = irregular[2] if len(irregular) > 2 else _with_ing(base)
    return Verb(base, _with_s(base), past, participle, gerund)


def _with_s(word: str) -> str:
    if word in {"go", "do"} or word in _O_ES or word.endswith(_SIBILANT):
        return word + "es"
    if _ends_in_consonant_y(word):
        return word[:-1] + "ies"
    return word + "s"


def _with_ed(base: str) -> str:
    if base.endswith("e"):
        return base + "d"
    if _ends_in_consonant_y(base):
        return base[:-1] + "ied"
    return _doubled(base) + "ed"


def _with_ing(base: str) -> str:
    if base.endswith("ie"):
        return base[:-2] + "ying"
    if base.endswith("e") and not base.endswith(("ee", "oe", "ye")):
        return base[:-1] + "ing"
    return _doubled(base) + "ing"


def _doubled(base: str) -> str:
    return base + base[-1] if _DOUBLES.match(base) else base


def _ends_in_consonant_y(word: str) -> bool:
    return len(word) > 1 and word.endswith("y") and word[-2] not in "aeiou"
