"""Symbols of a model: a vocabulary or a `tokens.txt`, and the bytes of text that each symbol writes.

A symbol is a piece of a word. Some begin a word (`▁the`, or a character of a script without spaces), one may be the
space, `<0xNN>` is a byte, and icefall's byte-level BPE encodes every byte as a letter.
Source: behavior of sherpa-onnx's symbol table and byte table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from model.errors import PublishedModelError
from model.text.files import read_lines
from model.text.letters import is_ideograph

BLANKS = ("<blk>", "<eps>", "<blank>")
WORD_START = "▁"
SPACES = frozenset({" ", "|", WORD_START})
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_FIELD = re.compile(r"[^ \t\r\n\f\v]+")  # U+3000 and U+00A0 are symbols, not spaces between fields
_NAMED = re.compile(r"<.+>")  # `<unk>`, `<sos/eos>`: symbols without text
_TAG = re.compile(r"<([a-z]{2,3}(?:-[A-Za-z]{4})?(?:-[A-Z]{2}|-[0-9]{3})?)>")  # `<en-US>`, `<ja>`
_NO_TAGS = frozenset({"blk", "bos", "cls", "eos", "eps", "pad", "sep", "sil", "sos", "unk"})
_LAST_OF_BYTE_BPE = 0xC6  # first byte of the last letters that byte-level BPE uses


@dataclass(frozen=True, slots=True)
class Tokens:
    """Symbols by number, with their bytes of text and whether a word begins or ends with them."""

    symbols: tuple[str, ...]
    blank: int
    starts: tuple[bool, ...]
    ends: tuple[bool, ...]
    texts: tuple[bytes, ...]

    @classmethod
    def of(cls, symbols: Sequence[str], blank: int) -> Tokens:
        """Determine how these symbols spell words."""
        table = _byte_bpe_letters() if _is_byte_bpe(symbols) else None
        has_bytes = "<0x00>" in symbols and "<0xFF>" in symbols
        starts, ends, texts = [], [], []
        for number, symbol in enumerate(symbols):
            space = symbol in SPACES and (symbol != "|" or " " not in symbols)
            begins = symbol.startswith(WORD_START)
            text = "" if number == blank or space else symbol.removeprefix(WORD_START)
            byte = _BYTE.fullmatch(symbol) if has_bytes else None
            alone = is_ideograph(text)
            starts.append(begins or space or alone)
            ends.append(space or alone)
            if byte:
                texts.append(bytes([int(byte[1], 16)]))
            elif table is not None:
                texts.append(b"".join(table.get(letter, letter.encode()) for letter in text))
            else:
                texts.append(text.encode())
        return cls(tuple(symbols), blank, tuple(starts), tuple(ends), tuple(texts))

    @classmethod
    def read(cls, path: Path, size: int) -> Tokens:
        """Read `tokens.txt` of a model with `size` outputs. Raises: PublishedModelError."""
        symbols = _read_lines(path)
        if sorted(symbols) != list(range(len(symbols))):
            raise PublishedModelError(f"{path}: symbol numbers must be 0 to {len(symbols) - 1}, each once")
        blank = next((number for name in BLANKS for number, symbol in symbols.items() if symbol == name), None)
        if blank is None:
            raise PublishedModelError(f"{path} has no blank symbol: expected one of {', '.join(BLANKS)}")
        if len(symbols) != size:
            raise PublishedModelError(f"{path} has {len(symbols)} symbols, but the model has {size} outputs")
        return cls.of([symbols[number] for number in range(size)], blank)

    @property
    def spelling(self) -> str:
        """Kind of the symbols: characters, pieces, pieces and bytes, or icefall's byte-level BPE."""
        if _is_byte_bpe(self.symbols):
            return "byte-level BPE"
        if "<0x00>" in self.symbols and "<0xFF>" in self.symbols:
            return "pieces and bytes"
        named = (symbol.removeprefix(WORD_START) for symbol in self.symbols if not _NAMED.fullmatch(symbol))
        return "pieces" if any(len(symbol) > 1 for symbol in named) else "characters"

    @property
    def written(self) -> bool:
        """Whether they write capitals and punctuation marks, apart from single bytes."""
        if self.spelling == "byte-level BPE":
            return False
        texts = [symbol.removeprefix(WORD_START) for symbol in self.symbols if not _NAMED.fullmatch(symbol)]
        starts = [text[:1] for text in texts]
        return "." in texts and "," in texts and any(map(str.isupper, starts)) and any(map(str.islower, starts))

    @property
    def tags(self) -> Mapping[int, str]:
        """Languages by the number of the symbol with which a model says that the words before it are of one."""
        matches = (
            (number, _TAG.fullmatch(symbol.removeprefix(WORD_START))) for number, symbol in enumerate(self.symbols)
        )
        return {number: tag[1] for number, tag in matches if tag is not None and tag[1] not in _NO_TAGS}

    def word(self, numbers: Sequence[int]) -> str:
        """Return the text of one word's symbols, without bytes of incomplete UTF-8 sequences."""
        return b"".join(map(self.texts.__getitem__, numbers)).decode("utf-8", "ignore")


def _read_lines(path: Path) -> dict[int, str]:
    names: dict[int, str] = {}
    for place, line in enumerate(read_lines(path, PublishedModelError), start=1):
        parts = _FIELD.findall(line)
        if not parts:
            continue
        symbol, number = (parts[0], parts[1]) if len(parts) == 2 else (" ", parts[0])
        if len(parts) > 2 or not number.isascii() or not number.isdigit():
            raise PublishedModelError(f"{path}, line {place}: expected a symbol and its number, not {line!r}")
        if int(number) in names:
            raise PublishedModelError(f"{path}, line {place}: number {number} was already used")
        names[int(number)] = symbol
    return names


def _is_byte_bpe(symbols: Sequence[str]) -> bool:
    highest = 0
    for symbol in symbols:
        highest = max(highest, *symbol.removeprefix(WORD_START).encode(), 0)
    return highest == _LAST_OF_BYTE_BPE


def _byte_bpe_letters() -> Mapping[str, bytes]:
    """Letters of icefall's byte-level BPE and their bytes: printable ASCII is unchanged, others start at U+0100.

    Letters with a compatibility form, which normalization would replace, are left out.
    """
    others = [byte for byte in range(256) if not 32 <= byte < 127]
    letters = [code for code in range(0x100, 0x1A7) if code not in {0x132, 0x133, 0x13F, 0x140, 0x149, 0x17F}]
    table = {chr(code): bytes([byte]) for code, byte in zip(letters, others, strict=True)}
    return {**{chr(code): bytes([code]) for code in range(32, 127)}, **table, "⁇": b" "}
