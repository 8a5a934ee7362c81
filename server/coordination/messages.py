"""Messages between the processes of a server about server-wide decisions.

A front end numbers its leases, so that it can release one even if it no longer waits for the answer. Messages of one
front end are handled in the order in which they were sent.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from batching.capacity import PeriodSteps
from server.coordination.expected_calls import ExpectedCall


class Message(msgspec.Struct, frozen=True, tag=True):
    """Base of all messages; the type's name is in each."""


# Requests of a front end


class Enter(Message, frozen=True):
    """Count a call of a key, if there is room for a stream."""

    lease: int
    openings: tuple[str, ...]
    owner: str
    limit: int | None


class TakeSlots(Message, frozen=True):
    """Hold slots of a model for the streams of one session.

    `within_s`: background streams wait for this time until live streams leave slots for them; None: no wait.
    """

    lease: int
    model: str
    streams: int
    background: bool
    within_s: float | None


class AskTicket(Message, frozen=True):
    """Ask whether a resume ticket was used, by its id."""

    ticket: bytes


class ExpectCall(Message, frozen=True):
    """Expect a call for `ttl_s`."""

    call: ExpectedCall
    ttl_s: float


class TakeCall(Message, frozen=True):
    """Ask for the options of a call, which is expected no more; `key_id`: only if they are of this key."""

    uuid: str
    key_id: str | None


class ReportSteps(Message, frozen=True):
    """This process's steps of a model in the last period, and its live streams that rest now."""

    model: str
    steps: PeriodSteps
    resting: int


# Notices of a front end, which have no answer


class Leave(Message, frozen=True):
    """A call has ended, or its front end no longer waits for the answer to `Enter`."""

    lease: int


class GiveBack(Message, frozen=True):
    """The engines have closed this many streams of a session, or its front end no longer waits for its slots."""

    lease: int
    slots: int


class UseTicket(Message, frozen=True):
    """A stream continues from a resume ticket; `issued_s` is seconds since 1970."""

    ticket: bytes
    issued_s: float


class OpenSlots(Message, frozen=True):
    """This process serves a model from now on.

    `step_s`: audio of a step; `batch_s`: seconds by rows of the warm-up of its engine.
    """

    model: str
    step_s: float
    batch_s: dict[int, float]


class CloseSlots(Message, frozen=True):
    """This process no longer serves a model."""

    model: str


class StreamsEnded(Message, frozen=True):
    """The engines of a model have stopped: this process has no stream of it."""

    model: str


# Answers: nothing, whether a ticket was used, the options of a call, or


class Numbers(msgspec.Struct, frozen=True, array_like=True):
    """Estimates of the whole server: for the reported model, and `limit` and `capacity` for all models.

    `processes`: number of processes that serve the model; `full`: as in `RefuseHint`.
    """

    estimate: int
    reserved: int
    slowdown: float
    limit: float
    capacity: float
    processes: int
    full: str | None


# To all front ends


class RefuseHint(Message, frozen=True):
    """Why no model can take a stream now; None if one can."""

    full: str | None


Request = Enter | TakeSlots | AskTicket | ExpectCall | TakeCall | ReportSteps
Notice = Leave | GiveBack | UseTicket | OpenSlots | CloseSlots | StreamsEnded
Answer = None | bool | ExpectedCall | Numbers


class Channel(Protocol):
    """Interface of a front end's connection to the deciding process. Messages are sent in the order of the calls."""

    async def request(self, message: Request) -> Any:
        """Return the answer to a message, a `Numbers` as a list, an `ExpectedCall` as a dict.

        The message is sent before the wait, so cancelling does not withdraw it; its answer may then never arrive.
        Raises: Refused, as raised by the other process; ServerNotReady once that process has ended.
        """

    def tell(self, message: Notice) -> None:
        """Send a message that has no answer; do nothing once the other process has ended."""
