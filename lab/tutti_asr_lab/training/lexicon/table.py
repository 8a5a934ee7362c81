"""Builds a lexicon for any language from a table of pronunciations.

Usage: `python -m tutti_asr_lab.training.lexicon.table TABLE --out NAME.lexicon.gz`.

Each line of the table has a word, a tab and its phones, separated by spaces; more pronunciations may follow after more
tabs. A word without phones is pronounced by espeak-ng with the language's `--voice`. Rules for other words, such as key
terms, are learned from all lines.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from model.errors import LexiconError, ModelError
from model.lexicon.letter_to_sound import LetterToSound
from model.lexicon.lexicon import Pronunciations, write_lexicon
from model.text.files import read_lines
from tutti_asr_lab.training.lexicon.alignment import align
from tutti_asr_lab.training.lexicon.espeak import pronounce

MOST_PHONES = 254  # limit of the search, in addition to the blank


@dataclass(frozen=True, slots=True)
class Summary:
    """Summary of a lexicon: numbers of words and rules, the phones, and the letters of the words, sorted."""

    words: int
    rules: int
    phones: tuple[str, ...]
    letters: tuple[str, ...]


def build(table: Path, out: Path, voice: str | None = None) -> Summary:
    """Write the lexicon. Raises: LexiconError with file and line; TrainingError if espeak-ng fails."""
    words = read_table(table, voice)
    phones = tuple(sorted({phone for spoken in words.values() for one in spoken for phone in one}))
    if len(phones) > MOST_PHONES:
        raise LexiconError(f"{table} has {len(phones)} phones; at most {MOST_PHONES} are possible")
    rules = LetterToSound.learn(align({word: spoken[0] for word, spoken in words.items()}))
    write_lexicon(out, phones, words, rules.lines())
    return Summary(len(words), len(rules.table), phones, tuple(sorted({letter for word in words for letter in word})))


def read_table(table: Path, voice: str | None = None) -> Mapping[str, Pronunciations]:
    """Read words with their pronunciations. Raises: LexiconError, TrainingError."""
    lines = read_lines(table, LexiconError)
    words: dict[str, Pronunciations] = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            word, spoken = _row(line, f"{table}:{number}")
            if word in words:
                raise LexiconError(f"{table}:{number}: duplicate word {word!r}; put all its pronunciations on one line")
            words[word] = spoken
    bare = [word for word, spoken in words.items() if not spoken]
    if bare and voice is None:
        raise LexiconError(f"{table}: {bare[0]!r} has no phones; give them, or use --voice LANGUAGE (espeak-ng)")
    words |= _said(bare, voice, table) if voice else {}
    if not words:
        raise LexiconError(f"{table} has no words")
    return words


def _row(line: str, where: str) -> tuple[str, Pronunciations]:
    word, *spoken = (field.strip() for field in line.split("\t"))
    if not word or " " in word or not all(spoken):
        raise LexiconError(f"{where}: expected a word, a tab and phones separated by spaces, not {line[:60]!r}")
    return word, tuple(tuple(one.split()) for one in spoken)


def _said(words: Sequence[str], voice: str, table: Path) -> dict[str, Pronunciations]:
    said = pronounce(words, voice)
    if silent := [word for word, phones in said.items() if not any(phones)]:
        raise LexiconError(f"{table}: espeak-ng has no pronunciation of {silent[0]!r}; give its phones")
    return {word: (phones,) for word, phones in said.items()}


def main() -> None:
    """Build the lexicon."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path, help="words with their phones, one per line")
    parser.add_argument("--voice", help="voice of espeak-ng for words without phones, such as es")
    parser.add_argument("--out", type=Path, required=True, help="NAME.lexicon.gz, next to NAME.arpa.gz")
    options = parser.parse_args()
    try:
        made = build(options.table, options.out, options.voice)
    except (ModelError, OSError) as error:
        sys.exit(f"error: {error}")
    print(f"wrote {options.out}: {made.words:,} words, {made.rules:,} rules")  # noqa: T201
    print(f"{len(made.phones)} phones: {' '.join(made.phones)}")  # noqa: T201
    print(f"letters, for the vocabulary of the recipe: {''.join(made.letters)}")  # noqa: T201


if __name__ == "__main__":
    main()
