"""One resumable connection's part in resuming: when a ticket is due, what it says, what a client has had already.

Pure: it is told of work and of events, and returns frames. The connection does what they ask for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec
import structlog

from batching.errors import WrongState
from model.errors import ModelError
from server.operations.metrics import Metrics
from server.protocols.deepgram.resume_messages import Resume, Resumed, ResumeRefused, TicketOut
from server.recognition.events import Event, Final, Partial, SpeechStarted, UtteranceGap
from server.recognition.saved_state import SavedStream
from server.recognition.session import Session
from server.refusals import TicketCode, TicketRefused
from server.resume.office import TicketOffice
from server.resume.tickets import Ticket

EVERY_S = 1.0  # of audio, from one ticket to the next
SLACK_S = 1e-6  # times on the wire are rounded to microseconds

_encode = msgspec.json.Encoder().encode
_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.resume")


class Sentences(Protocol):
    """Who writes the results, and remembers the sentence that each channel has begun."""

    @property
    def openings(self) -> tuple[tuple[str, ...], ...]:
        """By channel."""

    def restore(self, openings: Sequence[tuple[str, ...]]) -> None:
        """Go on with these."""


class Engines(Protocol):
    """Who has the model's states."""

    def restore(self, states: Sequence[bytes]) -> None:
        """Go on from these, by channel. Raises: WrongState."""


class Resuming:
    """A stream over the connections of its life, as this one sees it."""

    def __init__(
        self,
        session: Session,
        office: TicketOffice,
        *,
        tenant: bytes,
        request_id: str,
        sentences: Sentences,
        metrics: Metrics,
    ) -> None:
        """`session` gives no tickets if it is not resumable: where a voice-activity model listens."""
        self._session = session
        self._office = office
        self._tenant = tenant
        self._request_id = request_id
        self.stream_id = request_id  # that of the first connection
        self._sentences = sentences
        self._metrics = metrics
        self._taken: Ticket | None = None  # the stream went on from it, and has heard nothing yet
        self._finals = 0  # that were said, on whatever connection
        self._known_finals = 0  # that the client has
        self._known_s = 0.0  # as has it the interims up to here
        self._marked_s = office.now()
        if session.resumable:
            office.opened()

    def pushed(self) -> None:
        """Work went to the engine."""
        if self._taken is not None:
            self._office.used(self._taken)
            self._taken = None

    def due(self) -> bool:
        """Whether it is time to mark a place for a ticket."""
        session = self._session
        if not session.resumable or session.closing or session.delivery.marking:
            return False
        return session.unmarked_s() >= EVERY_S or self._office.ages(self._marked_s)

    def marked(self) -> None:
        """A place was marked."""
        self._marked_s = self._office.now()

    def knows(self, event: Event) -> bool:
        """Count what is said; return whether the client has had it on an earlier connection."""
        match event:
            case Final():
                self._finals += 1
                return self._finals <= self._known_finals
            case Partial():
                return event.start_s + event.duration_s <= self._known_s
            case SpeechStarted() | UtteranceGap():
                return self._session.channels[event.channel].cursor_s <= self._known_s
        return False

    def ticket(self, saved: SavedStream) -> bytes:
        """Return the frame of a ticket for a stream whose place has come."""
        ticket = self._office.issue(
            saved, stream_id=self.stream_id, tenant=self._tenant, openings=self._sentences.openings
        )
        return self._frame(ticket)

    def _frame(self, ticket: Ticket) -> bytes:
        audio_s = _seconds(self._session.replay_from_s(ticket.stream.audio))
        text = self._office.write(ticket)
        self._metrics.tickets.inc()
        return _encode(TicketOut(text, audio_s, ticket.stream.finals, self.stream_id))

    def resume(self, asked: Resume, engines: Engines) -> list[bytes]:
        """Do what a client asks first of all, on a session that is untouched; return the answer."""
        if asked.ticket is None:
            return self._begin_at(asked.from_s or 0.0, asked.finals)
        try:
            ticket = self._take(asked.ticket, engines)
        except TicketRefused as error:
            self._metrics.resumes.labels(error.code.value).inc()
            _log.info("ticket refused", request_id=self._request_id, code=error.code.value)
            return [_encode(ResumeRefused(error.code.value, str(error)))]
        self._taken = ticket
        self.stream_id = ticket.stream_id
        self._finals = ticket.stream.finals
        self._known_finals, self._known_s = asked.finals, asked.cursor_s + SLACK_S
        # A fresh ticket at once: this one can be used here no more, and the connection may be lost at any time.
        return [self._resumed("resumed"), self._frame(self._office.renewed(ticket))]

    def _take(self, text: str, engines: Engines) -> Ticket:
        session = self._session
        if not session.resumable:
            raise TicketRefused(TicketCode.UNAVAILABLE, "this server cannot resume streams")
        ticket = self._office.take(text, self._tenant)
        stream = ticket.stream
        parts = stream.channels, stream.states, stream.audio.cutters, ticket.openings
        if any(len(part) != len(session.channels) for part in parts):
            raise TicketRefused(TicketCode.MALFORMED, "the ticket has other channels")
        try:
            go_on = session.restoring(stream)
            engines.restore(stream.states)
        except WrongState as error:
            raise TicketRefused(TicketCode.MODEL, "the ticket is of another model") from error
        except (ValueError, ModelError) as error:
            raise TicketRefused(TicketCode.MALFORMED, "the ticket holds no such stream") from error
        go_on()
        self._sentences.restore(ticket.openings)
        return ticket

    def _begin_at(self, from_s: float, finals: int) -> list[bytes]:
        self._session.start_at(from_s, finals)
        self._finals = self._known_finals = finals
        return [self._resumed("replayed")]

    def _resumed(self, outcome: str) -> bytes:
        self._metrics.resumes.labels(outcome).inc()
        _log.info("stream resumed", request_id=self._request_id, stream_id=self.stream_id, by=outcome)
        return _encode(Resumed(_seconds(self._session.audio_s), self.stream_id))


def _seconds(value: float) -> float:
    return round(value, 6)
