"""Builds a lexicon for any language from a table of pronunciations.

Usage: `python -m model.training.lexicon.table TABLE --out NAME.lexicon.gz`.

A line of the table is a word, a tab and its phones with spaces between; further pronunciations follow after further
tabs. A line that has a word alone is pronounced by espeak-ng, in the `--voice` of the language. Rules for other words,
such as key terms, are learned from all of them.
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
from model.training.lexicon.alignment import align
from model.training.lexicon.espeak import pronounce

MOST_PHONES = 254  # that the search holds beside a blank


@dataclass(frozen=True, slots=True)
class Summary:
    """What was written: numbers of words and rules, the phones, and the letters of the words, sorted."""

    words: int
    rules: int
    phones: tuple[str, ...]
    letters: tuple[str, ...]


def build(table: Path, out: Path, voice: str | None = None) -> Summary:
    """Write the lexicon. Raises: LexiconError naming file and line; TrainingError where espeak-ng fails."""
    words = read_table(table, voice)
    phones = tuple(sorted({phone for spoken in words.values() for one in spoken for phone in one}))
    if len(phones) > MOST_PHONES:
        raise LexiconError(f"{table} has {len(phones)} phones, {MOST_PHONES} at most can be told apart")
    rules = LetterToSound.learn(align({word: spoken[0] for word, spoken in words.items()}))
    write_lexicon(out, phones, words, rules.lines())
    return Summary(len(words), len(rules.table), phones, tuple(sorted({letter for word in words for letter in word})))


def read_table(table: Path, voice: str | None = None) -> Mapping[str, Pronunciations]:
    """Words with their pronunciations. Raises: LexiconError, TrainingError."""
    lines = read_lines(table, LexiconError)
    words: dict[str, Pronunciations] = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            word, spoken = _row(line, f"{table}:{number}")
            if word in words:
                raise LexiconError(f"{table}:{number}: {word!r} was there before: its pronunciations stand in one line")
            words[word] = spoken
    bare = [word for word, spoken in words.items() if not spoken]
    if bare and voice is None:
        raise LexiconError(f"{table}: {bare[0]!r} has no phones; --voice LANGUAGE has espeak-ng say such words")
    words |= _said(bare, voice, table) if voice else {}
    if not words:
        raise LexiconError(f"{table} has no word")
    return words


def _row(line: str, where: str) -> tuple[str, Pronunciations]:
    word, *spoken = (field.strip() for field in line.split("\t"))
    if not word or " " in word or not all(spoken):
        raise LexiconError(f"{where}: a line is a word, a tab and phones with spaces between")
    return word, tuple(tuple(one.split()) for one in spoken)


def _said(words: Sequence[str], voice: str, table: Path) -> dict[str, Pronunciations]:
    said = pronounce(words, voice)
    if silent := [word for word, phones in said.items() if not any(phones)]:
        raise LexiconError(f"{table}: espeak-ng says nothing for {silent[0]!r}")
    return {word: (phones,) for word, phones in said.items()}


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path, help="words with their phones, a line each")
    parser.add_argument("--voice", help="espeak-ng's voice for words that stand alone, such as es")
    parser.add_argument("--out", type=Path, required=True, help="NAME.lexicon.gz, beside NAME.arpa.gz")
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
