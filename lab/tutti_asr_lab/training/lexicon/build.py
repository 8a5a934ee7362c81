"""Builds an English lexicon for the words of a language model.

Usage: `python -m tutti_asr_lab.training.lexicon.build --lm PATH --out PATH`.

espeak-ng pronounces the words, and letter-to-sound rules are learned from them; the accuracy of rules is measured on
held-out words. Words that espeak-ng pronounces with phones of other languages are pronounced by the rules. Roman
numerals, which espeak-ng introduces with "Roman", are pronounced as numbers and not used for the rules.
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
from tutti_asr_lab.training.lexicon.alignment import Alignment, align
from tutti_asr_lab.training.lexicon.espeak import PHONES, pronounce

HELD_OUT = 2_000
_AT_ONCE = 5_000  # words per call, and per line of progress

_NUMERAL = re.compile(r"[ivxlcdm]+")
_ROMAN = ("ɹ", "oʊ", "m", "ə", "n")

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Accuracy of rules on held-out words: fraction of words with an error, and of wrong phones."""

    words: int
    word_errors: float
    phone_errors: float

    def __str__(self) -> str:
        right = f"{1 - self.word_errors:.1%} of words correct, {self.phone_errors:.2%} of phones wrong"
        return f"rules on {self.words:,} held-out words: {right}"


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
    """Learn rules; return each word with one pronunciation, in the network's phones, and the rules.

    Raises: LexiconError.
    """
    roman = {word: phones[len(_ROMAN) :] for word, phones in said.items() if phones[: len(_ROMAN)] == _ROMAN}
    numerals = {word: phones for word, phones in roman.items() if phones and _NUMERAL.fullmatch(word)}  # "xi": eleven
    rest = {word: said[word] for word in sorted(said.keys() - numerals.keys())}
    kept = {word: phones for word, phones in rest.items() if phones and PHONES.issuperset(phones)}
    if not kept:
        raise LexiconError("no word has an English pronunciation; --lm must be a language model of English words")
    aligned = align(kept)
    if len(aligned) > HELD_OUT:
        report(str(measure(aligned)))
    rules = LetterToSound.learn(aligned)
    ruled = {word: rules.pronounce(word) for word in rest.keys() - kept.keys()}
    first = kept | numerals | {word: phones for word, phones in ruled.items() if phones}
    return {word: (phones,) for word, phones in first.items()}, rules


def measure(aligned: Mapping[str, Alignment]) -> Accuracy:
    """Learn rules without `HELD_OUT` evenly spaced words, and measure them on these."""
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
    """Levenshtein distance: insertions, deletions and substitutions cost 1 each.

    This package must not import `model.evaluation`, which has one too.
    """
    row = list(range(len(found) + 1))
    for i, phone in enumerate(truth, 1):
        last = [i]
        for j, (diagonal, above) in enumerate(pairwise(row)):
            last.append(min(above + 1, last[-1] + 1, diagonal + (phone != found[j])))
        row = last
    return row[-1]


def main() -> None:
    """Build the lexicon."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lm", type=Path, required=True, help=".arpa, .arpa.gz or .lm model")
    parser.add_argument("--out", type=Path, required=True, help="NAME.lexicon.gz; found if it is next to the model")
    options = parser.parse_args()
    try:
        build(options.lm, options.out, lambda line: print(line, flush=True))  # noqa: T201
    except (ModelError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
