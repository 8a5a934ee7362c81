"""Symbols of the network: pieces of UTF-8 text, as its authors' file lists them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

SPACE = "▁"
_SPECIAL, _BYTE = b"<", b"<0x"
_LONG = 128


def read_symbols(blob: bytes) -> list[bytes]:
    """Return the symbols of a file: each its length in a byte, or two if it is 128 and more, then its bytes."""
    symbols, at = [], 0
    while at < len(blob):
        size, at = blob[at], at + 1
        if size >= _LONG:
            size, at = size - _LONG + _LONG * blob[at], at + 1
        symbols.append(blob[at : at + size])
        at += size
    return symbols


def text_of(numbers: Iterable[int], symbols: Sequence[bytes]) -> str:
    """Return the text of symbols without those that are commands, such as the end."""
    pieces = []
    for number in numbers:
        piece = symbols[number]
        if piece.startswith(_BYTE):
            pieces.append(bytes([int(piece[3:5], 16)]))
        elif not (piece.startswith(_SPECIAL) and piece.endswith(b">") and len(piece) > 2):
            pieces.append(piece)
    return b"".join(pieces).decode(errors="replace").replace(SPACE, " ").strip()
