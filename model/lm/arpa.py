r"""ARPA files: the standard text form of a back-off model, plain or gzipped.

Base-10 logs in the file, natural logs in memory. N-grams may come in any order within their section.
Source: SRILM's ngram-format(5); an absent `<unk>` and absent contexts are handled as in KenLM (Heafield 2011).
"""

from __future__ import annotations

import lzma
import math
import unicodedata
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from model.errors import LanguageModelError
from model.lm.arpa_rows import ABSENT_LOG10, LARGEST_LOG10, LN10, ROWS, Arrays, Rows, WordTable
from model.lm.trie import SPECIAL_WORDS, NgramTable
from model.text.files import open_utf8

_BLOCK = 1 << 22  # bytes read at a time
_SPECIAL = {"<unk>": "<unk>", "[unk]": "<unk>", "<s>": "<s>", "[cls]": "<s>", "</s>": "</s>", "[sep]": "</s>"}
_BINARIES = {  # first bytes of binary models
    b"mmap lm http://kheafield.com/code": "a KenLM binary",
    b"SRILM_BINARY_NGRAM": "an SRILM binary",
    b"blmt": "an IRSTLM binary",
    b"Qblmt": "an IRSTLM binary",
    b"Trie Language Model": "a CMU Sphinx binary",
    b"Darpa Trigram LM": "a CMU Sphinx binary",
    b"tuttilm": "a cache file of tutti, whose name must end in .lm",
}


@dataclass(frozen=True, slots=True)
class Ngrams:
    """An n-gram model as tables: word i is `words[i]` (`SPECIAL_WORDS` first, then sorted), n-grams `tables[n - 1]`."""

    words: tuple[str, ...]
    tables: tuple[NgramTable, ...]


def read_arpa(path: Path) -> Ngrams:
    """Read and check an ARPA file. Raises: LanguageModelError with file and line."""
    try:
        with open_utf8(path, LanguageModelError) as file:
            return _Reader(path, file).read()
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise LanguageModelError(f"cannot read language model {path}: {error}") from error


class _Reader:
    """Parser: one pass over a file in blocks of whole lines, counted for error messages."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path, self._file, self._number = path, file, 0
        self._block, self._at = b"", 0  # lines read last, and the position of the next one
        self._ids: dict[bytes, int] = {}
        self._words: tuple[str, ...] = ()

    def read(self) -> Ngrams:
        counts = self._counts()
        tables = []
        for n, count in enumerate(counts, 1):
            tables.append(self._unigrams(count) if n == 1 else self._section(n, count))
        if self._line() != b"\\end\\":
            raise self._error("expected \\end\\")
        return Ngrams(self._words, tuple(tables))

    def _line(self) -> bytes:
        """Return the next line that is not empty, stripped. Raises: LanguageModelError at the end of the file."""
        for line in self._lines():
            if text := line.strip():
                return text
        raise self._error("the file ends early")

    def _lines(self) -> Iterator[bytes]:
        """Yield the lines that follow, counting them."""
        while True:
            if self._at == len(self._block):
                self._block, self._at = self._file.read(_BLOCK) + self._file.readline(), 0
                if not self._block:
                    return
            start, self._at = self._at, 1 + self._block.find(b"\n", self._at) or len(self._block)
            self._number += 1
            yield self._block[start : self._at]

    def _error(self, what: str) -> LanguageModelError:
        return LanguageModelError(f"{self._path}:{self._number}: {what}")

    def _find_data(self) -> None:
        """Skip to the header (SRILM allows text before it). Raises: LanguageModelError, which names a binary format."""
        for line in self._lines():
            if line.strip() == b"\\data\\":
                return
            kind = next((kind for mark, kind in _BINARIES.items() if line.startswith(mark)), None)
            if kind is not None:
                raise LanguageModelError(f"{self._path} is {kind}: use the ARPA file from which it was made")
            if b"\0" in line:
                raise LanguageModelError(f"{self._path} is a binary file; expected an ARPA file, which is text")
        raise LanguageModelError(f"{self._path} is not an ARPA file: the file ends early, without the line \\data\\")

    def _counts(self) -> list[int]:
        """Read the header, including the title of the unigrams."""
        self._find_data()
        counts: list[int] = []
        while (line := self._line()).startswith(b"ngram "):
            order, _, count = line[6:].partition(b"=")
            if not (order.strip().isdigit() and count.strip().isdigit()) or int(order) != len(counts) + 1:
                raise self._error(f"expected the count of order {len(counts) + 1}, not {_shown(line)}")
            counts.append(int(count))
        if not counts or not counts[0]:
            raise self._error("the header counts no unigrams")
        if line != b"\\1-grams:":
            raise self._error(f"expected \\1-grams:, not {_shown(line)}")
        return counts

    def _unigrams(self, count: int) -> NgramTable:
        rows: dict[str, tuple[float, float]] = {}
        as_read: dict[bytes, str] = {}
        for _ in range(count):
            name, log_prob, backoff = self._ngram(1)
            word = unicodedata.normalize("NFC", self._decoded(name[0]))
            word = _SPECIAL.get(word.lower(), word)
            if word in rows:
                raise self._error(f"duplicate word {word}")
            rows[word] = log_prob, backoff
            as_read[name[0]] = word
        small = _small_letters(rows)
        rows = {small.get(word, word): row for word, row in rows.items()}
        for word in SPECIAL_WORDS:
            rows.setdefault(word, (ABSENT_LOG10 * LN10, 0.0))
        self._words = (*SPECIAL_WORDS, *sorted(rows.keys() - set(SPECIAL_WORDS)))
        self._ids = {word.encode(): i for i, word in enumerate(self._words)}
        self._ids |= {word.upper().encode(): i for i, word in enumerate(SPECIAL_WORDS)}
        self._ids |= {name: self._ids[small.get(word, word).encode()] for name, word in as_read.items()}
        self._table = WordTable.of(self._ids)
        values = np.array([rows[word] for word in self._words], np.float32)  # (words, 2)
        return NgramTable(np.arange(len(rows), dtype=np.int32)[:, None], values[:, 0].copy(), values[:, 1].copy())

    def _section(self, n: int, count: int) -> NgramTable:
        if (line := self._line()) != f"\\{n}-grams:".encode():
            raise self._error(f"expected \\{n}-grams:, not {_shown(line)}")
        parts: list[Arrays] = []
        rows = Rows(n, self._table)
        while count:
            part, self._at, lines = rows.parse(self._block, self._at, count)
            self._number += lines
            parts.append(part)
            count -= len(part[0])
            if count and len(part[0]) < ROWS:  # the end of the block, or a line of another form
                parts.append(self._row(n))
                count -= 1
        if not parts:
            return NgramTable(np.zeros((0, n), np.int32), np.zeros(0, np.float32), np.zeros(0, np.float32))
        return NgramTable(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))

    def _row(self, n: int) -> Arrays:
        """Read one line of section n, of any form."""
        name, log_prob, backoff = self._ngram(n)
        try:
            ids = [self._ids[word] for word in name]
        except KeyError as error:
            raise self._error(f"{_shown(error.args[0])} is not among the unigrams") from None
        return np.array([ids], np.int32), np.array([log_prob], np.float32), np.array([backoff], np.float32)

    def _ngram(self, n: int) -> tuple[list[bytes], float, float]:
        """Read one line of section n: words, natural logs of probability and back-off weight."""
        line = self._line()
        fields = line.split()
        if len(fields) not in (n + 1, n + 2) or line.startswith(b"\\"):
            raise self._error(f"expected another {n}-gram, as the header says, not {_shown(line)}")
        try:
            log_prob, backoff = float(fields[0]), float(fields[n + 1]) if len(fields) == n + 2 else 0.0
        except ValueError:
            raise self._error(f"not a number in {_shown(line)}") from None
        if not (log_prob <= LARGEST_LOG10 and backoff < math.inf):  # refuses NaN too
            raise self._error(f"not the logarithm of a probability in {_shown(line)}")
        low = ABSENT_LOG10
        return fields[1 : n + 1], min(max(log_prob, low), 0.0) * LN10, max(backoff, low) * LN10

    def _decoded(self, word: bytes) -> str:
        try:
            return word.decode()
        except UnicodeDecodeError:
            raise self._error(f"not UTF-8: {_shown(word)}; save the file as UTF-8") from None


def _small_letters(words: Iterable[str]) -> Mapping[str, str]:
    """Lower-case forms of the words if all are in upper case, as some toolkits write them; else empty."""
    plain = [word for word in words if word not in SPECIAL_WORDS]
    if any(word != word.upper() for word in plain):
        return {}
    small = {word: word.lower() for word in plain}
    return small if len(set(small.values())) == len(small) else {}


def _shown(line: bytes) -> str:
    """A line for a message, cut to 60 bytes: a file that is not ARPA may consist of one long line."""
    return repr(line[:60].decode(errors="replace"))
