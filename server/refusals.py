"""Why a stream cannot go on from a ticket."""

from __future__ import annotations

from enum import StrEnum


class TicketCode(StrEnum):
    """As clients are told."""

    MALFORMED = "TICKET_MALFORMED"
    FORGED = "TICKET_FORGED"
    VERSION = "TICKET_VERSION"
    EXPIRED = "TICKET_EXPIRED"
    MODEL = "TICKET_MODEL"
    TENANT = "TICKET_TENANT"
    REPLAYED = "TICKET_REPLAYED"
    UNAVAILABLE = "RESUME_UNAVAILABLE"


class TicketRefused(Exception):
    """A stream cannot go on from this ticket; the message is meant for the client."""

    def __init__(self, code: TicketCode, description: str) -> None:
        super().__init__(description)
        self.code = code
