"""Sentences to be read by neural voices.

Usage: `python -m tutti_asr_lab.training.language_model.gathering.reading OUT --data DIR --text DIR`.

Sentences of novels and prompts whose words are in the lexicon, generated requests and numbers, single digits and digit
strings. None repeats a sentence of the development set, or six consecutive words of one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random

from model.config import SHIPPED_WEIGHTS
from model.errors import ModelError
from model.lexicon.lexicon import Lexicon
from model.recordings import read_manifest
from model.text.spelled import spoken
from tutti_asr_lab.training.language_model.gathering.sources import FILES
from tutti_asr_lab.training.language_model.gathering.texts import Overlap, read_files
from tutti_asr_lab.training.synthesis.sentences import sentences

SEED = 21
WORDS = range(3, 14)  # words per sentence: voices read longer ones worse, and slowly
COUNTS = {"novels": 2_200, "prompts": 2_600}
MADE, MADE_WORDS_SHARE = 1_500, 0.4  # before meaningless sentences and most single words are left out
DIGITS = ("zero", "oh", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
DIGIT_STRINGS, DIGIT_LENGTHS = 300, (1, 1, 1, 2, 3, 4, 5)


def to_read(data: Path, text: Path) -> Iterator[str]:
    """Yield the sentences; deterministic. Raises: ManifestError, LanguageModelError."""
    rng = Random(SEED)
    overlap = Overlap(spoken(row.text) for row in read_manifest(data / "dev.jsonl"))
    known = frozenset(Lexicon.load(SHIPPED_WEIGHTS / "tutti-words.lexicon.gz").words)
    for files in FILES:
        lines = [line for each in read_files(files, text) if _fits(line := spoken(each), overlap, known)]
        yield from rng.sample(lines, min(len(lines), COUNTS[files.name]))
    for made in islice(sentences(SEED), MADE):
        if made.kind != "grammar" and (made.kind != "word" or rng.random() < MADE_WORDS_SHARE):
            yield made.text
    for _ in range(DIGIT_STRINGS):
        yield " ".join(rng.choice(DIGITS) for _ in range(rng.choice(DIGIT_LENGTHS)))


def _fits(line: str, overlap: Overlap, known: frozenset[str]) -> bool:
    words = line.split()
    return len(words) in WORDS and line not in overlap and known.issuperset(words)


def main() -> None:
    """Write the sentences to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="file to write")
    parser.add_argument("--data", type=Path, required=True, help="folder with dev.jsonl")
    parser.add_argument("--text", type=Path, required=True, help="folder with novels and prompts, .txt.xz")
    options = parser.parse_args()
    try:
        lines = list(to_read(options.data, options.text))
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    except (ModelError, OSError) as error:
        sys.exit(f"error: {error}")
    print(f"{len(lines):,} sentences")  # noqa: T201


if __name__ == "__main__":
    main()
