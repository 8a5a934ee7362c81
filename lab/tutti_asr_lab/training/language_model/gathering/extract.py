"""Extraction of English paragraphs from unpacked packages, one function per kind of archive; not normalized."""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_TAGS = re.compile(r"<note\b.*?</note>|<title\b.*?</title>|<[^>]*>", re.DOTALL)
_ASIDE = re.compile(r"\s*[(\[][^()\[\]]*[)\]]")
# Words typed without apostrophes, and abbreviations; "its" and "well", which are words themselves, stay.
_TYPED = {
    "im": "i'm",
    "ive": "i've",
    "dont": "don't",
    "didnt": "didn't",
    "doesnt": "doesn't",
    "isnt": "isn't",
    "wasnt": "wasn't",
    "arent": "aren't",
    "havent": "haven't",
    "hasnt": "hasn't",
    "wouldnt": "wouldn't",
    "couldnt": "couldn't",
    "shouldnt": "shouldn't",
    "cant": "can't",
    "thats": "that's",
    "whats": "what's",
    "hows": "how's",
    "heres": "here's",
    "theres": "there's",
    "youre": "you're",
    "youve": "you've",
    "theyre": "they're",
    "u": "you",
    "ur": "your",
    "r": "are",
    "tho": "though",
    "cuz": "because",
    "bc": "because",
    "idk": "i don't know",
}
_TYPED_RE = re.compile(rf"(?<![\w'])(?:{'|'.join(_TYPED)})(?![\w'])")
# Fields of a country profile that contain sentences rather than lists and figures.
_PROSE_FIELDS = (
    "Background",
    "Economy - overview",
    "Disputes - international",
    "current situation",
    "tier rating",
    "Geography - note",
    "Climate",
    "Flag description",
    "general assessment",
    "Broadcast media",
    "Illicit drugs",
)


def plain_files(folder: Path) -> Iterator[str]:
    """Paragraphs of text files, separated by empty lines."""
    for file in sorted(folder.rglob("data/*.txt")):
        for paragraph in re.split(r"\n\s*\n", file.read_text(encoding="utf-8", errors="replace")):
            yield paragraph.replace("--", " . ")


def chitchat(folder: Path) -> Iterator[str]:
    """Messages of typed conversations."""
    for conversation in _json(folder, "dataset.json").values():
        for turn in conversation["messages"]:
            for message in turn:
                yield _TYPED_RE.sub(lambda found: _TYPED[found[0]], message["text"].lower())


def factbook(folder: Path) -> Iterator[str]:
    """Prose of country profiles."""
    for file in sorted(folder.rglob("*/*.json")):
        for name, text in _fields(json.loads(file.read_text(encoding="utf-8"))):
            if any(part in _PROSE_FIELDS for part in name):
                yield _without_asides(text.replace("++", ". ").replace(";", "."))


def wordnet(folder: Path) -> Iterator[str]:
    """Definitions and example sentences."""
    for file in sorted((folder / "usr/share/wordnet").glob("data.*")):
        for line in file.read_text(encoding="utf-8").splitlines():
            gloss = line.partition(" | ")[2]
            for part in re.split(r";\s*", gloss):
                yield _without_asides(part).strip(' "') + "."


def sword(folder: Path) -> Iterator[str]:
    """Verses of a SWORD zText module: zlib blocks, listed in a .bzs file as (offset, size, full size)."""
    for index in sorted(folder.rglob("*.bzs"), reverse=True):
        blocks, data = index.read_bytes(), index.with_suffix(".bzz").read_bytes()
        for offset, size, _ in struct.iter_unpack("<III", blocks[: len(blocks) // 12 * 12]):
            if size:
                markup = zlib.decompress(data[offset : offset + size]).decode("utf-8", errors="replace")
                yield " ".join(_TAGS.sub(" ", markup).split())


def r_strings(folder: Path) -> Iterator[str]:
    """Lines of the character vectors in an R package's data, joined into paragraphs."""
    data = next(folder.rglob("data/Rdata.rdb")).read_bytes()
    place = 0
    while place < len(data):
        unzip = zlib.decompressobj()
        chunk = unzip.decompress(data[place + 4 :])  # each object is preceded by 4 bytes of length
        place = len(data) - len(unzip.unused_data)
        yield from re.split(r"\n\s*\n", "\n".join(_character_strings(chunk)))


def _character_strings(chunk: bytes) -> Iterator[str]:
    """Yield the CHARSXP strings of R's serialization format (type 9 in the low byte of big-endian flags)."""
    for found in re.finditer(rb"\x00[\x04\x00][\x00\x20\x80]?\x00?\x09", chunk):
        (length,) = struct.unpack_from(">I", chunk, found.end()) if found.end() + 4 <= len(chunk) else (0,)
        if length < 1000:
            yield chunk[found.end() + 4 : found.end() + 4 + length].decode("utf-8", errors="replace")


def _fields(node: Any, name: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _fields(value, (*name, key))
    elif isinstance(node, str):
        yield name, node


def _without_asides(text: str) -> str:
    return _ASIDE.sub("", _ASIDE.sub("", text))


def _json(folder: Path, name: str) -> Any:
    return json.loads(next(folder.rglob(name)).read_text(encoding="utf-8"))
