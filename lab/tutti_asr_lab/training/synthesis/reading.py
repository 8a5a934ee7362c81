"""Sentences to be read by neural voices.

Usage: `python -m tutti_asr_lab.training.synthesis.reading OUT --data DIR --text DIR`.

Sentences of novels and prompts whose words are in the lexicon, generated requests and numbers, single digits and digit
strings. None repeats a sentence of the development set, or six consecutive words of one.
"""

from __future__ import annotations

import argparse
import lzma
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from random import Random

from model.config import SHIPPED_WEIGHTS
from model.errors import LanguageModelError, ModelError
from model.lexicon.lexicon import Lexicon
from model.recordings import read_manifest
from model.text.spelled import spoken
from tutti_asr_lab.training.synthesis.sentences import sentences

SEED = 21
WORDS = range(3, 14)  # words per sentence: voices read longer ones worse, and slowly
FILES = {  # xz, one sentence per line: names, sentences to draw, origin
    "novels": (("se_books.txt.xz",), 2_200, "Standard Ebooks, CC0 1.0"),
    "prompts": (("cv_prompts.txt.xz", "cv_wiki.txt.xz"), 2_600, "Mozilla Common Voice, CC0 1.0"),
}
SHARED_WORDS = 6
"""Consecutive words that two sentences share only if they have one origin; fewer may coincide by chance."""
MADE, MADE_WORDS_SHARE = 1_500, 0.4  # before meaningless sentences and most single words are left out
DIGITS = ("zero", "oh", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
DIGIT_STRINGS, DIGIT_LENGTHS = 300, (1, 1, 1, 2, 3, 4, 5)


class Overlap:
    """Detector of lines that repeat a sentence of a set, or `SHARED_WORDS` consecutive words of one."""

    def __init__(self, others: Iterable[str]) -> None:
        """Index the sentences. Those of one word do not count: digits are in every text."""
        indexed = [tuple(line.split()) for line in others]
        self._whole = {words for words in indexed if len(words) > 1}
        self._runs = {run for words in indexed for run in _runs(words)}

    def __contains__(self, line: str) -> bool:
        """Whether the line repeats one of the sentences."""
        words = tuple(line.split())
        return words in self._whole or any(run in self._runs for run in _runs(words))


def _runs(words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    return (words[at : at + SHARED_WORDS] for at in range(len(words) - SHARED_WORDS + 1))


def to_read(data: Path, text: Path) -> Iterator[str]:
    """Yield the sentences; deterministic. Raises: ManifestError, LanguageModelError."""
    rng = Random(SEED)
    overlap = Overlap(spoken(row.text) for row in read_manifest(data / "dev.jsonl"))
    known = frozenset(Lexicon.load(SHIPPED_WEIGHTS / "tutti-words.lexicon.gz").words)
    for source, (names, count, origin) in FILES.items():
        written = (line for name in names for line in _read(text / name, f"{source}: {origin}"))
        lines = [line for row in written if _fits(line := spoken(row), overlap, known)]
        yield from rng.sample(lines, min(len(lines), count))
    for made in islice(sentences(SEED), MADE):
        if made.kind != "grammar" and (made.kind != "word" or rng.random() < MADE_WORDS_SHARE):
            yield made.text
    for _ in range(DIGIT_STRINGS):
        yield " ".join(rng.choice(DIGITS) for _ in range(rng.choice(DIGIT_LENGTHS)))


def _read(path: Path, origin: str) -> Iterator[str]:
    try:
        with lzma.open(path, "rt", encoding="utf-8") as file:
            yield from file
    except (OSError, lzma.LZMAError, EOFError) as error:
        raise LanguageModelError(
            f"cannot read {path} ({origin}): {error}; --text must be a folder with this file, xz, a sentence per line"
        ) from error


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
