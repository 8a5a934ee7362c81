"""Builds a lexicon for the words of a language model.

Usage: `python -m model.training.lexicon.build --lm PATH --out PATH`.

espeak-ng pronounces the words, rules are learned from all of them, and how good such rules are is told by words that
others were learned without. Words that espeak-ng says in sounds of other languages are pronounced by the rules. Roman
numerals, which it announces as such, are said as numbers alone, and teach no rule.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from model.errors import LexiconError, ModelError
from model.lexicon.letter_to_sound import LetterToSound
from model.lexicon.lexicon import LETTERS, Phones, Pronunciations, write_lexicon
from model.lm.language_model import LanguageModel
from model.training.lexicon.alignment import Alignment, align
from model.training.lexicon.espeak import PHONES, pronounce

HELD_OUT = 2_000
_AT_ONCE = 5_000  # words, between two lines of progress

_NUMERAL = re.compile(r"[ivxlcdm]+")
_ROMAN = ("ɹ", "oʊ", "m", "ə", "n")

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Rules on words that they were not learned from: shares of words not all right, and of wrong phones."""

    words: int
    word_errors: float
    phone_errors: float

    def __str__(self) -> str:
        right = f"{1 - self.word_errors:.1%} of words right, {self.phone_errors:.2%} of phones wrong"
        return f"rules on {self.words:,} words that others were learned without: {right}"


def build(lm: Path, out: Path, report: Report) -> None:
    """Write the lexicon of a language model's words. Raises: LanguageModelError, LexiconError, TrainingError."""
    words = sorted({word.lower() for word in LanguageModel.load(lm).words if LETTERS.issuperset(word.lower())} - {"'"})
    said: dict[str, Phones] = {}
    for first in range(0, len(words), _AT_ONCE):
        said |= pronounce(words[first : first + _AT_ONCE])
        report(f"pronounced {len(said):,} of {len(words):,} words")
    pronounced, rules = learn(said, report)
    write_lexicon(out, PHONES, pronounced, rules.lines())
    report(f"wrote {out}: {len(pronounced):,} words, {len(rules.table):,} rules, {out.stat().st_size / 1e6:.2f} MB")


def learn(said: Mapping[str, Phones], report: Report) -> tuple[dict[str, Pronunciations], LetterToSound]:
    """All words with the one pronunciation that the network learned, and the rules that they taught.

    Raises: LexiconError.
    """
    numerals = {word: phones[len(_ROMAN) :] for word, phones in said.items() if _is_numeral(word, phones)}
    rest = {word: said[word] for word in sorted(said.keys() - numerals.keys())}
    kept = {word: phones for word, phones in rest.items() if phones and PHONES.issuperset(phones)}
    if not kept:
        raise LexiconError("no word has an English pronunciation: is it a language model of English words?")
    aligned = align(kept)
    if len(aligned) > HELD_OUT:
        report(str(measure(aligned)))
    rules = LetterToSound.learn(aligned)
    ruled = {word: rules.pronounce(word) for word in rest.keys() - kept.keys()}
    first = kept | numerals | {word: phones for word, phones in ruled.items() if phones}
    return {word: (phones,) for word, phones in first.items()}, rules


def _is_numeral(word: str, phones: Phones) -> bool:
    """True if espeak-ng reads "xi" as "Roman eleven"."""
    return _NUMERAL.fullmatch(word) is not None and phones[: len(_ROMAN)] == _ROMAN and len(phones) > len(_ROMAN)


def measure(aligned: Mapping[str, Alignment]) -> Accuracy:
    """Learn from all but `HELD_OUT` words, evenly spaced in the alphabet, and pronounce those."""
    words = sorted(aligned)
    held_out = {words[i * len(words) // HELD_OUT] for i in range(HELD_OUT)}
    rules = LetterToSound.learn({word: phones for word, phones in aligned.items() if word not in held_out})
    wrong = errors = total = 0
    for word in sorted(held_out):
        truth = tuple(phone for phones in aligned[word] for phone in phones)
        distance = _distance(truth, rules.pronounce(word))
        wrong, errors, total = wrong + (distance > 0), errors + distance, total + len(truth)
    return Accuracy(len(held_out), wrong / len(held_out), errors / total)


def _distance(truth: Sequence[str], found: Sequence[str]) -> int:
    """Insertions, deletions and substitutions: Levenshtein's distance.

    `model.evaluation` has one too, which stands above this package.
    """
    row = list(range(len(found) + 1))
    for i, phone in enumerate(truth, 1):
        last = [i]
        for j, (diagonal, above) in enumerate(pairwise(row)):
            last.append(min(above + 1, last[-1] + 1, diagonal + (phone != found[j])))
        row = last
    return row[-1]


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lm", type=Path, required=True, help=".arpa, .arpa.gz or .lm model")
    parser.add_argument("--out", type=Path, required=True, help="NAME.lexicon.gz beside the model is found by itself")
    options = parser.parse_args()
    try:
        build(options.lm, options.out, lambda line: print(line, flush=True))  # noqa: T201
    except (ModelError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
