"""A live connection in Deepgram's protocol that gives tickets and goes on from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
import structlog

from batching.errors import WrongState
from model.errors import ModelError
from server.errors import BadFrame, CloseReason, TicketCode, TicketRefused
from server.operations.metrics import Metrics
from server.protocols.deepgram.live import DeepgramStream, Projector
from server.protocols.deepgram.resume_messages import Resume, Resumed, ResumeRefused, TicketOut, parse_resume
from server.recognition.events import Event, Final, Partial, SpeechStarted, StepTiming, UtteranceGap
from server.recognition.recognizer import ActiveSession
from server.recognition.saved_state import SavedStream
from server.recognition.session import Session
from server.recognition.steps import Work
from server.resume.tickets import Ticket, TicketService
from server.streaming.outbox import FrameKind, OutFrame


class ResumableStream(DeepgramStream):
    """A `DeepgramStream` of which other connections can be the continuation."""

    def __init__(
        self, socket: Any, session: Session, projector: Projector, *, office: TicketService, tenant: bytes, **rest: Any
    ) -> None:
        """Take what a `DeepgramStream` takes besides."""
        super().__init__(socket, session, projector, **rest)
        self._resuming = Resuming(
            session,
            office,
            tenant=tenant,
            request_id=rest["request_id"],
            sentences=projector,
            metrics=rest["metrics"],
        )
        self._leaving = False

    def leave(self) -> bool:
        """Send the client elsewhere at once, with a last ticket; False, and nothing done, if it cannot be sent."""
        if self._recognition is None or not self._session.resumable or self._ending or self._reason is not None:
            return False
        self._ending = self._leaving = True  # what comes now the client will send again
        self._mark(self._recognition)
        return True

    def drain(self) -> None:
        """Close for a restart: with what is pending, or without it if the client was to leave and has not by now."""
        if self._leaving:
            self._end(CloseReason.DRAIN)
        else:
            super().drain()

    def on_events(self, events: Sequence[Event], timing: StepTiming | None) -> None:
        """Take what a step, or a frame of the client, changed."""
        super().on_events(events, timing)
        if not self._session.resumable:
            return
        while self._reason is None and (saved := self._session.result_order.take_saved()) is not None:
            self._put(OutFrame(self._resuming.ticket(saved), FrameKind.OTHER))
            if self._leaving and not self._session.result_order.marking:
                self._end(CloseReason.DRAIN)
            super().on_events(self._session.released(), timing)
            self._mark_if_due()

    def _known(self, event: Event) -> bool:
        return self._resuming.knows(event)

    def _push(self, work: Sequence[Work]) -> None:
        super()._push(work)
        if work:
            self._resuming.pushed()
            self._mark_if_due()

    def _mark_if_due(self) -> None:
        if self._recognition is not None and self._reason is None and self._resuming.due():
            self._mark(self._recognition)

    def _mark(self, recognition: ActiveSession) -> None:
        self._session.mark()
        self._resuming.marked()
        recognition.export()

    def _on_text(self, text: str) -> None:
        try:
            asked = parse_resume(text)
            if asked is None:
                super()._on_text(text)
                self._mark_if_due()  # a client that only keeps its stream alive needs a ticket of now, too
            else:
                self._resume(asked)
        except BadFrame as error:
            self._put(OutFrame(self._projector.complaint(str(error), text), FrameKind.OTHER))

    def _resume(self, asked: Resume) -> None:
        """Raises: BadFrame."""
        if not self._session.untouched:
            raise BadFrame("Resume comes before anything else")
        assert self._recognition is not None, "frames come to a stream that runs"
        for payload in self._resuming.resume(asked, self._recognition):
            self._put(OutFrame(payload, FrameKind.OTHER))


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
        office: TicketService,
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
        if not session.resumable or session.closing or session.result_order.marking:
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
