"""Tickets: a stream's state with its owner and its model, compressed, sealed, in base64; when one is refused."""

from __future__ import annotations

import base64
import binascii
import os
import zlib
from collections.abc import Callable, Iterable

import msgspec
import structlog

from model.ctc.words import digest_of
from server.errors import TicketCode, TicketRefused
from server.recognition.saved_state import SavedStream
from server.resume.seal import Seal, Unsealed

VERSION = 2  # of everything inside; a change of `saved_state`, or of the meaning of its bytes, needs another
MAX_BYTES = 4 * 2**20  # of a ticket's plain form: many channels, large models
COMPRESSION = 1  # a model's state does not compress; the rest gains nearly all at the lowest level
DIGEST_BYTES = 16
ID_BYTES = 16
AHEAD_S = 60.0  # by which the clock of another replica may be ahead

_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.resume")


class Ticket(msgspec.Struct, array_like=True, frozen=True):
    """A stream's state and its owner. `model` and `tenant` are digests; times are seconds since 1970."""

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
    """Return the text form that clients keep."""
    header = bytes([VERSION])
    sealed = header + seal.close(zlib.compress(_encode(ticket), COMPRESSION), header)
    return base64.urlsafe_b64encode(sealed).rstrip(b"=").decode()


def read_ticket(text: str, seal: Seal) -> Ticket:
    """Decode the text form. Raises: TicketRefused."""
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


class TicketService:
    """Issues tickets and checks those that clients bring."""

    def __init__(
        self,
        keys: list[bytes],
        *,
        ttl_s: float,
        setup: Callable[[], Iterable[str]],
        clock: Callable[[], float],
        own_key: bool = False,
    ) -> None:
        """`setup` names all that a state depends on: model, precision, decoder. `clock` gives seconds since 1970.

        `own_key` says that this process made the keys, so that its tickets are valid here only; without keys it makes
        one now.
        """
        self._own_key = own_key or not keys
        self._seal = Seal(keys or [os.urandom(32)])
        self._ttl_s = ttl_s
        self._setup = setup
        self._model: bytes | None = None
        self._clock = clock
        self._used: dict[bytes, float] = {}  # ticket id -> time of issue
        self._warned = False

    @property
    def model(self) -> bytes:
        """Digest of all that a state depends on; made on first use."""
        if self._model is None:
            self._model = _digest(*self._setup())
        return self._model

    def opened(self) -> None:
        """Note that a resumable stream began; the first one logs a missing key."""
        if self._own_key and not self._warned:
            self._warned = True
            _log.warning("no resume key is set: streams can be resumed at this server alone, and until it restarts")

    def ages(self, since_s: float) -> bool:
        """Whether a ticket issued at `since_s` should be replaced for its age alone."""
        return self._clock() - since_s > self._ttl_s / 2

    def now(self) -> float:
        """Seconds since 1970."""
        return self._clock()

    def issue(
        self, stream: SavedStream, *, stream_id: str, tenant: bytes, openings: tuple[tuple[str, ...], ...]
    ) -> Ticket:
        """Make a ticket."""
        return Ticket(os.urandom(ID_BYTES), stream_id, self._clock(), self.model, tenant, openings, stream)

    def renewed(self, ticket: Ticket) -> Ticket:
        """Make a fresh ticket of the same state."""
        return msgspec.structs.replace(ticket, id=os.urandom(ID_BYTES), issued_s=self._clock())

    def write(self, ticket: Ticket) -> str:
        """Return the sealed text form. On any thread."""
        return write_ticket(ticket, self._seal)

    def take(self, text: str, tenant: bytes) -> Ticket:
        """Read and check a client's ticket. Raises: TicketRefused."""
        ticket = read_ticket(text, self._seal)
        if ticket.model != self.model:  # before the tenant, whose query may be what chose the other model
            raise TicketRefused(TicketCode.MODEL, "the ticket is of another model, precision or decoder")
        if ticket.tenant != tenant:
            raise TicketRefused(TicketCode.TENANT, "the ticket is another key's, or of a stream with another query")
        if not -AHEAD_S <= self._clock() - ticket.issued_s <= self._ttl_s:
            raise TicketRefused(TicketCode.EXPIRED, f"the ticket is older than {self._ttl_s:g} s")
        if ticket.id in self._used:
            raise TicketRefused(TicketCode.REPLAYED, "a stream went on from this ticket before")
        return ticket

    def used(self, ticket: Ticket) -> None:
        """Refuse this ticket from now on: a stream went on from it."""
        now = self._clock()
        while self._used and now - next(iter(self._used.values())) > self._ttl_s + AHEAD_S:
            del self._used[next(iter(self._used))]
        self._used[ticket.id] = max(now, ticket.issued_s)


def _digest(*parts: str) -> bytes:
    return bytes.fromhex(digest_of(*parts))[:DIGEST_BYTES]


def tenant_digest(caller: str, query: Iterable[tuple[str, str]]) -> bytes:
    """Return a digest of the caller and the query; the order of different parameters does not count."""
    return _digest(caller, *(part for pair in sorted(query, key=lambda pair: pair[0]) for part in pair))
