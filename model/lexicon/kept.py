"""Lexicon files that were read and checked once: their lines, kept next to the file, from which words are looked up.

Reading a lexicon of 100,000 words takes most of a second of processor time and 50 MB. Few words are asked for while a
server runs: those of key terms and grammars. So their pronunciations are split when they are asked for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from model.errors import LanguageModelError
from model.lexicon.letter_to_sound import LetterToSound
from model.lexicon.lexicon import Lexicon, Pronunciations
from model.lm.cache import SUFFIX, cache_dirs, kept, read_cache, write_cache

FORM = "lexicon 1"
Bytes = NDArray[np.uint8]


class KeptWords(Mapping[str, Pronunciations]):
    """Words with their pronunciations, split from sorted lines `word<TAB>phones…` in UTF-8 at each look-up."""

    def __init__(self, lines: Bytes) -> None:
        """`lines`: (bytes,) uint8; each line ends with a newline."""
        self._lines = lines.tobytes()
        self._ends = np.flatnonzero(lines == ord("\n"))

    def __len__(self) -> int:
        return len(self._ends)

    def __iter__(self) -> Iterator[str]:
        return (line.partition(b"\t")[0].decode() for line in self._lines.splitlines())

    def __getitem__(self, word: str) -> Pronunciations:
        wanted, low, high = word.encode(errors="surrogatepass"), 0, len(self)
        while low < high:
            middle = (low + high) // 2
            found, _, spoken = self._line(middle).partition(b"\t")
            if found == wanted:
                return tuple(tuple(each.split(" ")) for each in spoken.decode().split("\t"))
            low, high = (middle + 1, high) if found < wanted else (low, middle)
        raise KeyError(word)

    def _line(self, number: int) -> bytes:
        begin = int(self._ends[number - 1]) + 1 if number else 0
        return self._lines[begin : int(self._ends[number])]


def kept_lexicon(path: Path) -> Lexicon:
    """Return a lexicon from its cache; the first time it is read, checked and kept. Raises: LexiconError."""
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return Lexicon.load(path)  # which says what is wrong
    places = [folder / f"{path.name}-{digest[:16]}{SUFFIX}" for folder in cache_dirs(path)]
    return kept(places, lambda place: _read(place, digest), lambda: Lexicon.load(path), _write)


def _read(path: Path, digest: str) -> Lexicon:
    """Raises: LanguageModelError for another file's cache or a damaged one; OSError."""
    header, arrays = read_cache(path)
    if (header.get("form"), header.get("digest")) != (FORM, digest):
        raise LanguageModelError(f"{path} is not the cache of this lexicon")
    phones = tuple(header["phones"])
    rules = LetterToSound.parse(arrays["rules"].tobytes().decode().splitlines(), phones)
    return Lexicon(phones, KeptWords(arrays["words"]), digest, rules)


def _write(lexicon: Lexicon, path: Path) -> None:
    """Raises: OSError if the folder cannot be written."""
    words = ("\t".join([word, *map(" ".join, spoken)]) for word, spoken in lexicon.words.items())
    header = {"form": FORM, "digest": lexicon.digest, "phones": lexicon.phones}
    write_cache(path, header, {"words": _bytes(words), "rules": _bytes(lexicon.rules.lines())})


def _bytes(lines: Iterator[str] | list[str]) -> Bytes:
    return np.frombuffer("".join(f"{line}\n" for line in lines).encode(), np.uint8)
