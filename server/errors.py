"""Errors of the server, and what clients get for them: HTTP status of a refusal, code and reason of a close.

Imports nothing of the server.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Self


class CloseReason(StrEnum):
    """Why a connection ends; `CLOSES` has its close code."""

    CLOSE_STREAM = "close_stream"
    IDLE = "idle"
    TOO_LONG = "too_long"
    DRAIN = "drain"
    TOO_FAST = "too_fast"
    BAD_AUDIO = "bad_audio"
    NOT_UNDERSTOOD = "not_understood"
    STALLED = "stalled"
    BROKEN = "broken"
    SLOW_CONSUMER = "slow_consumer"
    CLIENT_GONE = "client_gone"


class ServerError(Exception):
    """Base of the errors that this package raises."""


class Refused(ServerError):
    """The request cannot be served; the message is meant for the client."""


class BadParameter(Refused):
    """A parameter of the request that is invalid or not supported."""


class FluxModel(BadParameter):
    """A model of `/v2/listen` at another path."""


class BadAudio(Refused):
    """An uploaded body that cannot be decoded as audio."""


class TooLarge(Refused):
    """A body over the size limit."""


class TooSlow(Refused):
    """A body that did not arrive in time."""


class UnknownPath(Refused):
    """A path that has no endpoint, or a WebSocket at one that has no protocol."""


class WrongMethod(Refused):
    """A method that the path has no endpoint for."""


class NotAuthorized(Refused):
    """A missing or wrong key."""


class NotAllowed(Refused):
    """A key, token or web page without the right to do this."""


class TooManyStreams(Refused):
    """A key with as many streams open as its quota allows."""


class TooManyUploads(Refused):
    """Too many uploads in progress; live streams may still enter."""


class TooManyOpenings(Refused):
    """A key or an address, the `owner`, that opens streams faster than this server allows."""

    def __init__(self, text: str, owner: str) -> None:
        super().__init__(text)
        self.owner = owner


class ServerFull(Refused):
    """Every slot is taken."""


class ServerDraining(Refused):
    """This replica is about to stop."""


class ServerNotReady(Refused):
    """The engine cannot take streams now."""


class RecognitionFailed(Refused):
    """The model failed on this upload."""


class UnexpectedFailure(Refused):
    """A defect of this server that ended a request; the log has the traceback."""

    def __init__(self) -> None:
        super().__init__("internal error; the server's log has the cause under this request's id")


class ClientGone(ServerError):
    """The client of an upload disconnected before the answer."""


class BadFrame(ServerError):
    """A client's text frame that cannot be parsed; the message says why."""


class KeytermsTooOften(ServerError):
    """Key terms changed more often than the audio received allows; the message says when they may be again."""


class BacklogExceeded(ServerError):
    """A message with more audio than a stream may hold unanswered."""


class EngineDead(ServerError):
    """The model thread ended; no stream can continue."""


class IllegalTransition(ServerError):
    """An event that cannot happen in the connection's state: a defect of this server."""


class UnknownModel(ServerError):
    """An operator named a model that this server does not have."""


class ModelStays(ServerError):
    """A model that cannot be unloaded, or not be loaded again; the message says why."""


class SettingsError(ServerError):
    """A setting that cannot be applied; the message begins with the setting's name, which `of_setting` adds."""


class AddressError(SettingsError):
    """An address that this process cannot listen on."""


@contextmanager
def of_setting(name: str) -> Iterator[None]:
    """Begin the message of a SettingsError with the name of the setting whose value is read; also of a BadParameter."""
    try:
        yield
    except (SettingsError, BadParameter) as error:
        raise SettingsError(f"{name}: {error}") from error


@dataclass(frozen=True, slots=True)
class Refusal:
    """HTTP form of a refusal. `reason` is its metric label, `retry_after_s` the least `Retry-After`."""

    status: int
    err_code: str
    reason: str
    retry_after_s: int | None = None


# Source: Deepgram's reference of listen-streaming. 503 rather than 429 when full: pipecat 1.14 gives up after any 4xx.
REFUSALS: dict[type[Refused], Refusal] = {
    BadParameter: Refusal(400, "INVALID_QUERY_PARAMETER", "bad_request"),
    FluxModel: Refusal(400, "V2_MODEL_ON_V1_LISTEN_ENDPOINT", "bad_request"),  # Source: openclaw/openclaw#129452
    BadAudio: Refusal(400, "INVALID_AUDIO", "bad_request"),
    TooLarge: Refusal(413, "PAYLOAD_TOO_LARGE", "bad_request"),
    TooSlow: Refusal(408, "REQUEST_TIMEOUT", "bad_request"),
    UnknownPath: Refusal(404, "NOT_FOUND", "bad_request"),
    WrongMethod: Refusal(405, "METHOD_NOT_ALLOWED", "bad_request"),
    NotAuthorized: Refusal(401, "INVALID_AUTH", "auth"),
    NotAllowed: Refusal(403, "INSUFFICIENT_PERMISSIONS", "auth"),
    TooManyStreams: Refusal(429, "TOO_MANY_REQUESTS", "quota", retry_after_s=1),
    TooManyUploads: Refusal(503, "SERVICE_UNAVAILABLE", "uploads", retry_after_s=1),
    TooManyOpenings: Refusal(503, "SERVICE_UNAVAILABLE", "rate", retry_after_s=1),
    ServerFull: Refusal(503, "SERVICE_UNAVAILABLE", "capacity", retry_after_s=1),
    ServerDraining: Refusal(503, "SERVICE_UNAVAILABLE", "draining", retry_after_s=5),
    ServerNotReady: Refusal(503, "SERVICE_UNAVAILABLE", "capacity", retry_after_s=5),
    RecognitionFailed: Refusal(500, "INTERNAL_ERROR", "error"),
    UnexpectedFailure: Refusal(500, "INTERNAL_ERROR", "error"),
}


@dataclass(frozen=True, slots=True)
class Close:
    """Close code and reason on the wire, 123 bytes at most. `outcome` is the metric label."""

    code: int
    reason: str
    outcome: str


# Source: Deepgram's page on DATA and NET errors. 1001 is never sent: deepgram-sdk 7.16 takes it for a complete text.
CLOSES: dict[CloseReason, Close] = {
    CloseReason.CLOSE_STREAM: Close(1000, "", "completed"),
    CloseReason.IDLE: Close(
        1011, "did not receive audio data or a text message within the timeout window (net0001)", "idle_timeout"
    ),
    CloseReason.TOO_LONG: Close(1008, "the connection was open for as long as this server allows", "error"),
    CloseReason.DRAIN: Close(1012, "the server is restarting", "drained"),
    CloseReason.TOO_FAST: Close(1008, "DATA-0000 more audio at once than a stream may hold", "error"),
    CloseReason.BAD_AUDIO: Close(1008, "DATA-0000 the audio cannot be decoded", "error"),
    CloseReason.NOT_UNDERSTOOD: Close(1008, "DATA-0000 unrecognized message", "error"),
    CloseReason.STALLED: Close(1011, "NET-0000 the server made no progress on this stream", "error"),
    CloseReason.BROKEN: Close(1011, "NET-0000 recognition failed on this stream", "error"),
    CloseReason.SLOW_CONSUMER: Close(1008, "results are not being read", "error"),
    CloseReason.CLIENT_GONE: Close(1006, "", "client_abort"),
}


class MediaError(ServerError):
    """Audio that cannot be decoded; its decoder is not used again."""


class Undecodable(MediaError):
    """Bytes in another format than announced, or damaged."""


class NoAudio(Undecodable):
    """A stream that is only headers, pictures or other tracks for longer than is accepted."""

    @classmethod
    def in_bytes(cls, size_bytes: int) -> Self:
        """Return the error for this number of bytes without audio."""
        return cls(f"no audio in {size_bytes >> 20} MiB of the stream; send headers, pictures and other tracks smaller")


class NotTaken(MediaError):
    """Audio in a form that this server does not decode."""


class Headless(NotTaken):
    """A part of a recording that does not begin with the header of its container."""


class Inflated(MediaError):
    """A decompression bomb: a few bytes that decode to hours of audio."""


class TicketCode(StrEnum):
    """Code of a refused ticket, as clients get it."""

    MALFORMED = "TICKET_MALFORMED"
    FORGED = "TICKET_FORGED"
    VERSION = "TICKET_VERSION"
    EXPIRED = "TICKET_EXPIRED"
    MODEL = "TICKET_MODEL"
    TENANT = "TICKET_TENANT"
    REPLAYED = "TICKET_REPLAYED"


class TicketRefused(Exception):
    """A ticket from which no stream can continue; the message is meant for the client."""

    def __init__(self, code: TicketCode, description: str) -> None:
        super().__init__(description)
        self.code = code
