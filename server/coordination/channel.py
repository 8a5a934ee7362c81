"""What a front end needs of the connection to the process that decides, and how refusals cross it."""

from __future__ import annotations

from typing import Protocol

from server.coordination.messages import Answer, Denied, Notice, Request
from server.errors import REFUSALS, Refused

_KINDS = {kind.__name__: kind for kind in REFUSALS}


class Channel(Protocol):
    """Sends messages in the order of the calls."""

    async def request(self, message: Request) -> Answer:
        """Return the answer to a message, which may be `Denied`.

        The message is sent before this waits, so cancelling does not take it back; its answer may never come then.
        Raises: ServerNotReady once the other process has ended.
        """

    def tell(self, message: Notice) -> None:
        """Send a message that has no answer; do nothing once the other process has ended."""


def denied(error: Refused, opening: str = "") -> Denied:
    """Return the message for a refusal."""
    return Denied(type(error).__name__, str(error), opening)


def refused(answer: Denied) -> Refused:
    """Return the error of a refusal, of the same class and with the same text."""
    return _KINDS[answer.kind](answer.text)


def granted(answer: Answer) -> Answer:
    """Return an answer that is no refusal. Raises: Refused, the error that the other process raised."""
    if isinstance(answer, Denied):
        raise refused(answer)
    return answer
