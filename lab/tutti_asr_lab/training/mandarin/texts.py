"""Texts for a language model of Chinese characters.

Usage: `python -m tutti_asr_lab.training.mandarin.texts OUT --text DIR --speech DIR --ngrams ARPA`.

Writes `prompts.txt` from Common Voice's prompts, `speech.txt` from the transcripts of training recordings, `digits.txt`
and `commands.txt` with generated digit strings and commands and, given an n-gram model of words, `drawn.txt` with lines
sampled from it. Each character is a word. Sentences that share six consecutive characters with a held-out transcript
are left out.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from model.errors import LanguageModelError, ModelError
from model.text.chinese import sentences_of
from model.text.files import read_lines
from tutti_asr_lab.training.language_model.drawing import Drawing
from tutti_asr_lab.training.mandarin.commands import commands, titles_of
from tutti_asr_lab.training.synthesis.digits import digit_strings

SHARED = 6  # consecutive characters
DRAWN_CHARACTERS = 20_000_000  # sampled from a model of words, in two minutes
DRAWN_WORDS = 15  # words per line


def prompts(folder: Path) -> Iterator[str]:
    """Sentences of all texts in a folder. Raises: LanguageModelError."""
    paths = sorted(folder.glob("*.txt.xz"))
    if not paths:
        raise LanguageModelError(f"{folder} has no .txt.xz file")
    for path in paths:
        for line in read_lines(path, LanguageModelError):
            yield from sentences_of(line)


def overlaps(held_out: Iterable[str]) -> set[str]:
    """All runs of `SHARED` characters of the held-out texts."""
    return {text[at : at + SHARED] for text in held_out for at in range(len(text) - SHARED + 1)}


def without(sentences: Iterable[str], runs: set[str]) -> Iterator[str]:
    """Sentences that contain none of the runs."""
    for text in sentences:
        if not any(text[at : at + SHARED] in runs for at in range(len(text) - SHARED + 1)):
            yield text


def transcripts(manifest: Path) -> list[str]:
    """Sentences of a manifest's texts. Raises: LanguageModelError."""
    try:
        rows = [json.loads(line) for line in read_lines(manifest, LanguageModelError)]
    except ValueError as error:
        raise LanguageModelError(f"cannot read {manifest}: {error}") from error
    return [sentence for row in rows for sentence in sentences_of(row.get("characters") or row["text"])]


def drawn(path: Path, characters: int = DRAWN_CHARACTERS) -> Iterator[str]:
    """Lines of Chinese words sampled from an ARPA model; other words are skipped.

    Raises: LanguageModelError.
    """
    model = Drawing(path)
    chinese = frozenset(word for word in model.words if sentences_of(word) == [word])
    if not chinese:
        raise LanguageModelError(f"{path} has no Chinese words")
    words, left = (word for word in model if word in chinese), characters
    while left > 0:
        line = "".join(islice(words, DRAWN_WORDS))
        left -= len(line)
        yield line


def write(out: Path, text: Path, speech: Path, ngrams: Path | None = None) -> dict[str, int]:
    """Write the texts, including sampled lines if a model of words is given; return their numbers of characters.

    Raises: LanguageModelError.
    """
    out.mkdir(parents=True, exist_ok=True)
    runs = overlaps(transcripts(speech / "dev.jsonl"))
    said = [sentence for path in sorted(speech.glob("train-*.jsonl")) for sentence in transcripts(path)]
    sources = {
        "prompts": prompts(text),
        "speech": said,
        "digits": (line.replace(" ", "") for line in digit_strings("zh")),
        "commands": commands(titles_of(said)),
    }
    if ngrams is not None:
        sources["drawn"] = drawn(ngrams)
    counts = {}
    for name, sentences in sources.items():
        kept = list(sentences if name == "digits" else without(sentences, runs))
        (out / f"{name}.txt").write_text("".join(" ".join(each) + "\n" for each in kept), encoding="utf-8")
        counts[name] = sum(map(len, kept))
    return counts


def main() -> None:
    """Write the texts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder of the texts")
    parser.add_argument("--text", type=Path, required=True, help="folder with .txt.xz files, one sentence per line")
    parser.add_argument("--speech", type=Path, required=True, help="folder that speech.py of this package wrote")
    parser.add_argument("--ngrams", type=Path, help="ARPA model of Chinese words, such as libime's lm_sc.arpa")
    options = parser.parse_args()
    try:
        counts = write(options.out, options.text, options.speech, options.ngrams)
    except (ModelError, OSError) as error:
        sys.exit(f"error: {error}")
    for name, count in counts.items():
        print(f"{name}: {count:,} characters")  # noqa: T201


if __name__ == "__main__":
    main()
