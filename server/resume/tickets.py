"""Tickets as text: a stream's state with what it belongs to, compressed, sealed, in base64. And why one is refused.

The first byte is the version and stays readable; all that follows is sealed and bound to it.
"""

from __future__ import annotations

import base64
import binascii
import zlib

import msgspec

from server.recognition.saved_state import SavedStream
from server.refusals import TicketCode, TicketRefused
from server.resume.seal import Seal, Unsealed

VERSION = 1  # of everything inside; a change of `saved`, or of what its bytes mean, needs another
MAX_BYTES = 4 * 2**20  # of a ticket's plain form: many channels, large models
COMPRESSION = 1  # a model's state is noise; the rest gains nearly all at the lowest level


class Ticket(msgspec.Struct, array_like=True, frozen=True):
    """A stream's state, and whose it is. `model` and `tenant` are digests; times are seconds since 1970."""

    id: bytes
    stream_id: str
    issued_s: float
    model: bytes
    tenant: bytes
    openings: tuple[tuple[str, ...], ...]  # by channel: the words that begin the open sentence
    stream: SavedStream


_decode = msgspec.msgpack.Decoder(Ticket).decode
_encode = msgspec.msgpack.Encoder().encode


def write_ticket(ticket: Ticket, seal: Seal) -> str:
    """Return the text that clients keep."""
    header = bytes([VERSION])
    sealed = header + seal.close(zlib.compress(_encode(ticket), COMPRESSION), header)
    return base64.urlsafe_b64encode(sealed).rstrip(b"=").decode()


def read_ticket(text: str, seal: Seal) -> Ticket:
    """Return what `write_ticket` wrote. Raises: TicketRefused."""
    sealed = _from_base64(text)
    if not sealed:
        raise TicketRefused(TicketCode.MALFORMED, "the ticket is no base64")
    if sealed[0] != VERSION:
        raise TicketRefused(TicketCode.VERSION, f"the ticket has version {sealed[0]}, this server reads {VERSION}")
    try:
        plain = seal.open(sealed[1:], sealed[:1])
    except Unsealed as error:
        raise TicketRefused(TicketCode.FORGED, "the ticket was made with another key, or changed since") from error
    try:
        inflater = zlib.decompressobj()
        return _decode(inflater.decompress(plain, MAX_BYTES))
    except (zlib.error, msgspec.MsgspecError) as error:
        raise TicketRefused(TicketCode.MALFORMED, "the ticket is none") from error


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return b""
