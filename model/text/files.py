r"""Reading of text files: UTF-8 with or without a byte order mark, UTF-16 or UTF-32 with one; plain, gzip or xz.

All text input is read here. Lines end at \n or \r\n only: U+2028, U+0085 and other characters at which
`str.splitlines` splits are part of a line. Other encodings are refused with an error that names file and line.
"""

from __future__ import annotations

import codecs
import gzip
import io
import lzma
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, cast

Refusal = Callable[[str], Exception]
"""Makes the caller's exception from a message."""

_GZIP, _XZ = b"\x1f\x8b", b"\xfd7zXZ\x00"
_MARKS = (  # UTF-32 begins as UTF-16 does
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_HEAD = 64  # bytes read to detect the encoding


def read_text(path: Path, refusal: Refusal) -> str:
    r"""Read a text file, without its byte order mark, \r\n as \n. Raises: the exception that `refusal` makes."""
    with open_utf8(path, refusal) as file:
        content = _read(path, file, refusal)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        value = content[error.start]
        raise refusal(f"{path}:{line}: byte 0x{value:02x} is not UTF-8; save the file as UTF-8") from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise refusal(
            f"{path}:{line}: not a text file (NUL character); save it as UTF-8, or as UTF-16 with a byte order mark"
        )
    return text.replace("\r\n", "\n")


def stamp_of(path: Path) -> tuple[int, int, int] | None:
    """Return a value that changes when a file is written, replaced or made readable; None while it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ctime_ns, status.st_size, status.st_ino


def read_lines(path: Path, refusal: Refusal) -> list[str]:
    """Read the lines of a file, without line ends. Raises: the exception that `refusal` makes."""
    return lines_of(read_text(path, refusal))


def lines_of(text: str) -> list[str]:
    r"""Split a text at \n and \r\n only; a line end at the end of the text starts no empty line."""
    lines = text.replace("\r\n", "\n").split("\n")
    return lines if lines[-1] else lines[:-1]


def open_utf8(path: Path, refusal: Refusal) -> BinaryIO:
    """Open a file for reading as UTF-8 bytes: decompressed, without a byte order mark, UTF-16 and UTF-32 converted.

    Invalid UTF-8 is not detected here. Raises: the exception that `refusal` makes.
    """
    try:
        file = _decompressed(path)
    except OSError as error:
        raise refusal(f"cannot read {path}: {error.strerror or error}") from error
    try:
        head = _peeked(path, file, refusal)
        for mark, encoding in _MARKS:
            if head.startswith(mark):
                return _converted(path, file, encoding, refusal)
        if head.startswith(codecs.BOM_UTF8):
            file.read(len(codecs.BOM_UTF8))
    except BaseException:
        file.close()
        raise
    return file


def _decompressed(path: Path) -> BinaryIO:
    with path.open("rb") as file:
        head = file.read(len(_XZ))
    if head.startswith(_GZIP):
        return cast(BinaryIO, gzip.open(path, "rb"))
    return cast(BinaryIO, lzma.open(path, "rb")) if head == _XZ else path.open("rb")


def _peeked(path: Path, file: BinaryIO, refusal: Refusal) -> bytes:
    head = _read(path, file, refusal, _HEAD)
    file.seek(0)
    return head


def _converted(path: Path, file: BinaryIO, encoding: str, refusal: Refusal) -> BinaryIO:
    content = _read(path, file, refusal)
    file.close()
    try:
        return io.BytesIO(content.decode(encoding).encode())
    except UnicodeError as error:
        name = encoding.upper()
        line = 1
        if isinstance(error, UnicodeDecodeError):
            line += content[: error.start].decode(encoding, "ignore").count("\n")
        raise refusal(f"{path}:{line}: not {name}, despite its byte order mark; save the file as UTF-8") from None


def _read(path: Path, file: BinaryIO, refusal: Refusal, size: int = -1) -> bytes:
    try:
        return file.read(size)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        reason = getattr(error, "strerror", None) or error
        raise refusal(f"cannot read {path}: {reason}") from error
