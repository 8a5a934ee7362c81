"""Tickets: a stream's state with its owner and model, compressed, sealed and base64-encoded; issue and checks.

They are sealed by AES-256-GCM with keys derived from the operator's. Each process derives its own from the first key
and a random salt, which is part of each sealed text. So no two processes share a key, and random nonces do not repeat
(up to 2**32 texts per process; source: NIST SP 800-38D, section 8.3). All keys decrypt: to rotate them, put the new one
first and remove the old one when its last ticket has expired.
"""

from __future__ import annotations

import base64
import binascii
import os
import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import msgspec
import structlog
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from model.ctc.interface import digest_of
from server.coordination.coordinator import TicketUse
from server.coordination.limits import AHEAD_S
from server.errors import SettingsError, TicketCode, TicketRefused
from server.recognition.saved_state import SavedReceipts, SavedStream

KEY_BYTES = 32
SALT_BYTES = 16
NONCE_BYTES = 12
OVERHEAD_BYTES = SALT_BYTES + NONCE_BYTES + 16  # the 16 are the tag
PROCESSES = 64  # number of processes whose derived keys are cached


class Unsealed(Exception):
    """Bytes sealed with another key, or modified."""


class Seal:
    """Encrypts with the first key, decrypts with any key."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        """`keys`: at least one, each of `KEY_BYTES`."""
        assert keys, "at least one key is needed"
        self._keys = tuple(keys)
        self._salt = os.urandom(SALT_BYTES)
        self._cipher = AESGCM(_derived(self._keys[0], self._salt))
        self._ciphers = lru_cache(PROCESSES * len(self._keys))(_cipher)

    def close(self, plain: bytes, header: bytes) -> bytes:
        """Encrypt and authenticate `plain`; `header` is only authenticated, and `open` needs the same one."""
        nonce = os.urandom(NONCE_BYTES)
        return self._salt + nonce + self._cipher.encrypt(nonce, plain, header)

    def open(self, closed: bytes, header: bytes) -> bytes:
        """Return the decrypted bytes. Raises: Unsealed."""
        salt, nonce = closed[:SALT_BYTES], closed[SALT_BYTES : SALT_BYTES + NONCE_BYTES]
        if len(closed) < OVERHEAD_BYTES:
            raise Unsealed("too short for sealed bytes")
        for key in self._keys:
            try:
                return self._ciphers(key, salt).decrypt(nonce, closed[SALT_BYTES + NONCE_BYTES :], header)
            except InvalidTag:
                continue
        raise Unsealed("sealed with another key, or modified")


def new_key() -> str:
    """Return a new random key in base64, as `read_keys` expects."""
    return base64.urlsafe_b64encode(os.urandom(KEY_BYTES)).decode()


def read_keys(keys: Iterable[tuple[str, str]]) -> list[bytes]:
    """Decode keys, each with its location; `#` begins a comment. Raises: SettingsError, without the key."""
    return [_read_key(place, key.partition("#")[0].strip()) for place, key in keys]


def _read_key(place: str, key: str) -> bytes:
    try:
        read = base64.b64decode(key + "=" * (-len(key) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        read = b""
    if len(read) != KEY_BYTES:
        raise SettingsError(f"{place}: expected {KEY_BYTES} bytes in base64; create a key with `tutti keys resume`")
    return read


def _derived(key: bytes, salt: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=salt, info=b"tutti resume ticket").derive(key)


def _cipher(key: bytes, salt: bytes) -> AESGCM:
    return AESGCM(_derived(key, salt))


VERSION = 8  # increase it with every change of `saved_state` or of the meaning of its bytes
MAX_BYTES = 4 * 2**20  # of a decompressed ticket: enough for many channels and large models
MOST_STATE_BYTES = MAX_BYTES - 2**18  # of the engine's states in a ticket; the rest is for decoders and receipts
COMPRESSION = 1  # a model's state does not compress; for the rest the lowest level is nearly as good as the highest
DIGEST_BYTES = 16
ID_BYTES = 16

_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.tickets")


class Ticket(msgspec.Struct, array_like=True, frozen=True):
    """A stream's state and its owner. `model` and `tenant` are digests; times are seconds since 1970."""

    id: bytes
    stream_id: str
    issued_s: float
    model: bytes
    tenant: bytes
    openings: tuple[tuple[str, ...], ...]  # by channel: kept words of the incomplete sentence
    stream: SavedStream
    receipts: SavedReceipts | None = None


_decode = msgspec.msgpack.Decoder(Ticket).decode
_encode = msgspec.msgpack.Encoder().encode


def write_ticket(ticket: Ticket, seal: Seal) -> str:
    """Return the text form for clients."""
    header = bytes([VERSION])
    sealed = header + seal.close(zlib.compress(_encode(ticket), COMPRESSION), header)
    return base64.urlsafe_b64encode(sealed).rstrip(b"=").decode()


def read_ticket(text: str, seal: Seal) -> Ticket:
    """Decode the text form. Raises: TicketRefused."""
    sealed = _from_base64(text)
    if not sealed:
        raise TicketRefused(TicketCode.MALFORMED, "invalid ticket: not base64")
    if sealed[0] != VERSION:
        raise TicketRefused(
            TicketCode.VERSION, f"the ticket has version {sealed[0]}; this server supports only version {VERSION}"
        )
    try:
        plain = seal.open(sealed[1:], sealed[:1])
    except Unsealed as error:
        raise TicketRefused(TicketCode.FORGED, "the ticket was sealed with another key, or modified") from error
    try:
        inflater = zlib.decompressobj()
        return _decode(inflater.decompress(plain, MAX_BYTES))
    except (zlib.error, msgspec.MsgspecError) as error:
        raise TicketRefused(TicketCode.MALFORMED, "invalid ticket: cannot be decoded") from error


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return b""


class TicketService:
    """Issues tickets and checks the tickets of clients."""

    def __init__(
        self,
        keys: list[bytes],
        *,
        ttl_s: float,
        setup: Callable[[], Iterable[str]],
        clock: Callable[[], float],
        use: TicketUse,
        own_key: bool = False,
    ) -> None:
        """`setup` lists everything that a state depends on: model, precision, decoder. `clock` is seconds since 1970.

        `use` knows which tickets were used. `own_key`: the keys were generated by this server, so its tickets are valid
        only here. Without keys one is generated.
        """
        self._own_key = own_key or not keys
        self._seal = Seal(keys or [os.urandom(32)])
        self._ttl_s = ttl_s
        self._setup = setup
        self._model: bytes | None = None
        self._clock = clock
        self._use = use
        self._warned = False

    @property
    def model(self) -> bytes:
        """Digest of everything that a state depends on; computed on first use."""
        if self._model is None:
            self._model = _digest(*self._setup())
        return self._model

    def opened(self) -> None:
        """Warn about missing keys when the first resumable stream opens."""
        if self._own_key and not self._warned:
            self._warned = True
            _log.warning("resume_keys is not set: streams can be resumed only on this server, until it restarts")

    def ages(self, since_s: float) -> bool:
        """Whether a ticket issued at `since_s` should be renewed because of its age."""
        return self._clock() - since_s > self._ttl_s / 2

    def now(self) -> float:
        """Return the time in seconds since 1970."""
        return self._clock()

    def issue(
        self,
        stream: SavedStream,
        *,
        stream_id: str,
        tenant: bytes,
        openings: tuple[tuple[str, ...], ...],
        receipts: SavedReceipts | None = None,
    ) -> Ticket:
        """Return a new ticket for this state."""
        ticket_id, now_s = os.urandom(ID_BYTES), self._clock()
        return Ticket(ticket_id, stream_id, now_s, self.model, tenant, openings, stream, receipts)

    def renewed(self, ticket: Ticket) -> Ticket:
        """Return a new ticket with the same state."""
        return msgspec.structs.replace(ticket, id=os.urandom(ID_BYTES), issued_s=self._clock())

    def write(self, ticket: Ticket) -> str:
        """Return the sealed text form. May be called on any thread."""
        return write_ticket(ticket, self._seal)

    def take(self, text: str, tenant: bytes) -> Ticket:
        """Read and check a client's ticket; `refuse_if_used` comes after it. Raises: TicketRefused."""
        ticket = read_ticket(text, self._seal)
        if ticket.model != self.model:  # before the tenant check, because another query may have chosen another model
            raise TicketRefused(
                TicketCode.MODEL,
                "the ticket is for another model, precision, decoder, voice-activity setting or speaker model",
            )
        if ticket.tenant != tenant:
            raise TicketRefused(
                TicketCode.TENANT, "the ticket belongs to another API key, another query or another enrolled voice"
            )
        if not -AHEAD_S <= self._clock() - ticket.issued_s <= self._ttl_s:
            raise TicketRefused(TicketCode.EXPIRED, f"the ticket is older than {self._ttl_s:g} s")
        return ticket

    async def refuse_if_used(self, ticket: Ticket) -> None:
        """Refuse a ticket that a stream has continued from. Raises: TicketRefused."""
        if await self._use.ticket_used(ticket.id):
            raise TicketRefused(TicketCode.REPLAYED, "this ticket was already used")

    def used(self, ticket: Ticket) -> None:
        """Mark a ticket as used, so that `refuse_if_used` refuses it."""
        self._use.use_ticket(ticket.id, ticket.issued_s)


def _digest(*parts: str) -> bytes:
    return bytes.fromhex(digest_of(*parts))[:DIGEST_BYTES]


def tenant_digest(caller: str, query: Iterable[tuple[str, str]]) -> bytes:
    """Return a digest of the caller and the query, independent of the order of different parameters."""
    return _digest(caller, *(part for pair in sorted(query, key=lambda pair: pair[0]) for part in pair))
