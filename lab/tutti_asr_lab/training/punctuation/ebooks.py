"""Extraction of prose paragraphs from the repositories of Standard Ebooks: XHTML, one file per chapter.

Verse, headings, notes, tables and the publisher's additions are left out. Abbreviations are spelled in full, without
their point unless they end a sentence, which the editions mark.
"""

from __future__ import annotations

import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

from model.errors import TrainingError
from model.text.spelled import spoken
from tutti_asr_lab.training.punctuation.books import ORIGIN

_TYPE = "{http://www.idpf.org/2007/ops}type"
_NO_PROSE = (
    "titlepage", "halftitlepage", "imprint", "colophon", "uncopyright", "copyright", "toc", "loi", "endnotes",
    "footnotes", "dedication", "epigraph", "bibliography", "glossary", "acknowledgements", "index", "dramatis",
)  # fmt: skip
_SKIPPED = {"header", "hgroup", "table", "figure", "footer", "nav", "ol", "ul", "dl"}
_VERSE = {"z3998:verse", "z3998:poem", "z3998:song", "z3998:hymn", "epigraph", "z3998:letter", "z3998:lyrics"}


def fetch(name: str, folder: Path) -> Path:
    """Path of the book's repository in the folder, bare or not; cloned if missing. Raises: TrainingError."""
    repository = folder / name
    if not repository.exists():
        _git("clone", "--quiet", "--bare", "--depth", "1", f"{ORIGIN}/{name}", str(repository))
    return repository


def paragraphs(repository: Path) -> Iterator[str]:
    """Prose paragraphs of the newest commit, in the order of file names. Raises: TrainingError."""
    names = _git("-C", str(repository), "ls-tree", "-r", "--name-only", "HEAD", "src/epub/text").splitlines()
    for name in names:
        if name.endswith(".xhtml") and not Path(name).stem.startswith(_NO_PROSE):
            yield from chapter(_git("-C", str(repository), "show", f"HEAD:{name}"))


def chapter(xhtml: str) -> Iterator[str]:
    """Prose paragraphs of one file."""
    yield from _paragraphs(ET.fromstring(xhtml))  # noqa: S314 - repositories that the user chose


def _paragraphs(node: ET.Element) -> Iterator[str]:
    tag = _tag(node)
    if tag in _SKIPPED or _types(node) & _VERSE:
        return
    if tag != "p":
        for child in node:
            yield from _paragraphs(child)
    elif all(_tag(inner) != "br" for inner in node.iter()):
        yield " ".join(_text(node).split())


def _text(node: ET.Element) -> str:
    parts = [node.text or ""]
    for child in node:
        if "noteref" not in _types(child):
            parts.append(_abbreviation(child) if _tag(child) == "abbr" else _text(child))
        parts.append(child.tail or "")
    return "".join(parts)


def _abbreviation(node: ET.Element) -> str:
    short = "".join(node.itertext())
    words = " ".join(word.capitalize() if short[:1].isupper() else word for word in spoken(short).split())
    return words + ("." if "eoc" in node.get("class", "").split() else "")


def _tag(node: ET.Element) -> str:
    return node.tag.rpartition("}")[2]


def _types(node: ET.Element) -> set[str]:
    return set(node.get(_TYPE, "").split())


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, check=True)  # noqa: S603, S607
    except (OSError, subprocess.CalledProcessError) as error:
        raise TrainingError(f"git {' '.join(arguments)}: {error}") from error
    return done.stdout.decode("utf-8")
