r"""Lexicon files: pronunciations of the words of a language model, and rules for every other word.

The file is UTF-8 text, gzipped; lines end with \n, fields are separated by tabs, phones by spaces:

    tutti lexicon 1
    phones 3<TAB>d æ n               all phones, sorted
    words 2                          2 lines follow, sorted by word
    an<TAB>æ n                       a word and its pronunciations, the most common first
    and<TAB>æ n d<TAB>n
    rules 1                          1 line follows; sorted by context, see `model.lexicon.letter_to_sound`
    a<TAB>æ                          a letter with its neighbors, and its phones (none where it is silent)

Owns the file format. Knows neither where pronunciations come from nor how rules are learned.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from model.errors import LanguageModelError, LexiconError
from model.lexicon.letter_to_sound import LetterToSound, RuleError
from model.lm.cache import SUFFIX as CACHE_SUFFIX
from model.lm.cache import cache_dirs, kept, read_cache, write_cache
from model.text import files as text_files

FORMAT = "tutti lexicon 1"
LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz'")
VOWELS = frozenset("aeiouy")
SUFFIX = ".lexicon.gz"
KEPT_FORM = "lexicon 1"  # of the cache next to the file
_REMEDY = "restore the file, or build it again with python -m tutti_asr_lab.training.lexicon.build"

Bytes = NDArray[np.uint8]
Phones = tuple[str, ...]
Pronunciations = tuple[Phones, ...]
"""One or more pronunciations of a word, the most common first."""


@dataclass(frozen=True)
class Lexicon:
    """Phones (P), and the pronunciations of words (lower-case letters, or Chinese characters) in these phones.

    `digest` is the SHA-256 of the file, in hexadecimal digits.
    """

    phones: Phones
    words: Mapping[str, Pronunciations]
    digest: str
    rules: LetterToSound = field(default_factory=lambda: LetterToSound({}), repr=False)

    @classmethod
    def load(cls, path: Path) -> Lexicon:
        """Read and check a lexicon file. Raises: LexiconError with file and line."""
        try:
            raw = path.read_bytes()
            text = text_files.read_text(path, ValueError)
        except (OSError, ValueError) as error:
            raise LexiconError(f"cannot read lexicon {path}: {error}; {_REMEDY}") from error
        return _Reader(path, text, hashlib.sha256(raw).hexdigest()).read()

    def pronounce(self, word: str) -> Pronunciations:
        """Pronunciations of a word; for a word that is not in the file, one by the rules.

        A word whose letters are all silent by the rules is spelled letter by letter. A word without letters, or with a
        character other than a-z, the apostrophe and those of the rules, has no pronunciation.
        """
        known = self.words.get(word)
        if known is not None:
            return known
        if not self._letters.issuperset(word):
            return ()
        phones = self.rules.pronounce(word) or tuple(chain.from_iterable(map(self._name, word)))
        return (phones,) if phones else ()

    def pronounce_term(self, word: str) -> Pronunciations:
        """Pronunciations of a word of a key term; an abbreviation without a vowel letter is also spelled: "gpt"."""
        if word in self.words or not VOWELS.isdisjoint(word):
            return self.pronounce(word)
        names = tuple(map(self._name, word))
        spelled = (tuple(chain.from_iterable(names)),) if names and all(names) else ()
        return (*spelled, *self.pronounce(word))

    @cached_property
    def _letters(self) -> frozenset[str]:
        return LETTERS.union(context[0] for context in self.rules.table)

    def _name(self, letter: str) -> Phones:
        """Phones of a letter's name: its last pronunciation, because the first of "a" is that of the article."""
        return self.words[letter][-1] if letter in self.words else ()


def write_lexicon(
    path: Path, phones: Iterable[str], words: Mapping[str, Pronunciations], rules: Sequence[str] = ()
) -> None:
    """Write a lexicon file. Deterministic: the same content gives the same bytes."""
    listed = sorted(phones)
    lines = [FORMAT, f"phones {len(listed)}\t{' '.join(listed)}", f"words {len(words)}"]
    lines += ["\t".join([word, *map(" ".join, words[word])]) for word in sorted(words)]
    lines += [f"rules {len(rules)}", *rules]
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode(), 9, mtime=0))


class _Reader:
    """Parser: one pass over the lines of a file."""

    def __init__(self, path: Path, text: str, digest: str) -> None:
        self._path, self._digest = path, digest
        self._lines = text.split("\n")
        self._next = 0

    def read(self) -> Lexicon:
        if self._line() != FORMAT:
            raise self._error(f"expected {FORMAT!r} as the first line")
        count, _, listed = self._line().partition("\t")
        phones = tuple(listed.split())
        if count != f"phones {len(phones)}" or list(phones) != sorted(set(phones)) or not phones:
            raise self._error("expected 'phones', their number, a tab and the phones, sorted")
        words = self._words(self._count("words"), frozenset(phones))
        count_of_rules = self._count("rules")
        rules = self._lines[self._next : self._next + count_of_rules]
        if self._lines[self._next + count_of_rules :] != [""]:
            self._next = min(self._next + count_of_rules + 1, len(self._lines) - 1)  # the first surplus line
            raise self._error(f"the file must end after {count_of_rules:,} rules")
        try:
            return Lexicon(phones, words, self._digest, LetterToSound.parse(rules, phones))
        except RuleError as error:
            self._next += error.line + 1
            raise self._error(str(error)) from error

    def _line(self) -> str:
        if self._next == len(self._lines):
            raise self._error("the file ends early")
        self._next += 1
        return self._lines[self._next - 1]

    def _error(self, what: str) -> LexiconError:
        return LexiconError(f"{self._path}:{max(self._next, 1)}: {what}; {_REMEDY}")

    def _count(self, name: str) -> int:
        title, _, number = self._line().partition(" ")
        if title != name or not (number.isascii() and number.isdigit()):
            raise self._error(f"expected '{name}' and their number")
        return int(number)

    def _words(self, count: int, known: frozenset[str]) -> Mapping[str, Pronunciations]:
        """Read `count` lines. Equal pronunciations share one object, which halves time and memory."""
        split: dict[str, Phones] = {}
        words: dict[str, Pronunciations] = {}
        previous = ""
        for _ in range(count):
            word, *fields = self._line().split("\t")
            if not fields or word <= previous:
                raise self._error(f"expected a word with its pronunciations, sorted after {previous!r}")
            spoken = []
            for one in fields:
                if (phones := split.get(one)) is None:
                    phones = tuple(one.split(" "))
                    if not known.issuperset(phones):
                        raise self._error(f"{one!r} has a phone that the file does not list")
                    split[one] = phones
                spoken.append(phones)
            words[word] = tuple(spoken)
            previous = word
        return MappingProxyType(words)


class KeptWords(Mapping[str, Pronunciations]):
    """Words with their pronunciations, split from sorted lines `word<TAB>phones…` in UTF-8 at each look-up.

    Reading a lexicon of 100,000 words takes most of a second of processor time and 50 MB, and few are asked for while a
    server runs: those of key terms and grammars.
    """

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
            entry, _, spoken = self._line(middle).partition(b"\t")
            if entry == wanted:
                return tuple(tuple(variant.split(" ")) for variant in spoken.decode().split("\t"))
            low, high = (middle + 1, high) if entry < wanted else (low, middle)
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
    places = [folder / f"{path.name}-{digest[:16]}{CACHE_SUFFIX}" for folder in cache_dirs(path)]
    return kept(places, lambda file: _read_kept(file, digest), lambda: Lexicon.load(path), _write_kept)


def _read_kept(path: Path, digest: str) -> Lexicon:
    """Raises: LanguageModelError for another file's cache or a damaged one; OSError."""
    header, arrays = read_cache(path)
    if (header.get("form"), header.get("digest")) != (KEPT_FORM, digest):
        raise LanguageModelError(f"{path} is not the cache of this lexicon")
    phones = tuple(header["phones"])
    rules = LetterToSound.parse(arrays["rules"].tobytes().decode().splitlines(), phones)
    return Lexicon(phones, KeptWords(arrays["words"]), digest, rules)


def _write_kept(lexicon: Lexicon, path: Path) -> None:
    """Raises: OSError if the folder cannot be written."""
    words = ("\t".join([word, *map(" ".join, spoken)]) for word, spoken in lexicon.words.items())
    header = {"form": KEPT_FORM, "digest": lexicon.digest, "phones": lexicon.phones}
    write_cache(path, header, {"words": _bytes(words), "rules": _bytes(lexicon.rules.lines())})


def _bytes(lines: Iterator[str] | list[str]) -> Bytes:
    return np.frombuffer("".join(f"{line}\n" for line in lines).encode(), np.uint8)
