"""Live connection in Deepgram's protocol that issues resume tickets and resumes streams from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
import structlog
from starlette.websockets import WebSocket

from batching.errors import WrongState
from model.errors import ModelError
from server.audio.decoder import LiveDecoder
from server.errors import BadFrame, TicketCode, TicketRefused
from server.protocols.deepgram.live import DeepgramStream
from server.protocols.deepgram.projector import Projector
from server.protocols.features import problem_of
from server.recognition.events import Event, Final, Partial, SpeechStarted, StepTiming, UtteranceGap
from server.recognition.messages import StartAt, TicketTaken
from server.recognition.saved_state import SavedStream
from server.recognition.session import Session
from server.recognition.steps import Work
from server.resume.tickets import Ticket, TicketService
from server.streaming.closing import ConnectionEvent, State
from server.streaming.flow_control import ConnectionContext
from server.streaming.outbox import OutFrame

EVERY_S = 1.0  # seconds of audio between tickets
BYTES_A_SECOND = 100_000  # of tickets: larger ones come less often
Seconds = Annotated[float, msgspec.Meta(ge=0, le=10_000_000)]
SLACK_S = 1e-6  # times on the wire are rounded to microseconds

_encode = msgspec.json.Encoder().encode
_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.resume")


class Resume(msgspec.Struct, tag_field="type", tag="Resume", frozen=True, forbid_unknown_fields=True):
    """Resume from a ticket, or start the stream time at `from_s`.

    `finals` is the number received since the first connection; `cursor_s` the largest start + duration of any result.
    """

    ticket: str | None = None
    from_s: Seconds | None = None
    finals: Annotated[int, msgspec.Meta(ge=0, le=2**53)] = 0
    cursor_s: Seconds = 0.0


class TicketOut(msgspec.Struct, tag_field="type", tag="Ticket", frozen=True):
    """A stream's state as encrypted text: a later connection resumes from it with the audio from `audio_s` on.

    `finals` is the number before the state: fewer than the client has received while a replay catches up.
    """

    ticket: str
    audio_s: float
    finals: int
    stream_id: str


class Resumed(msgspec.Struct, tag_field="type", tag="Resumed", frozen=True):
    """The stream is resumed; the client sends audio from `audio_s` on."""

    audio_s: float
    stream_id: str


class ResumeRefused(msgspec.Struct, tag_field="type", tag="ResumeRefused", frozen=True):
    """The ticket was refused; the stream starts anew."""

    code: str
    description: str


class _Tagged(msgspec.Struct, frozen=True):
    """The type of any message."""

    type: str = ""


_tagged = msgspec.json.Decoder(_Tagged).decode
_decode = msgspec.json.Decoder(Resume).decode


def parse_resume(text: str) -> Resume | None:
    """Parse a text frame; return None if it is not a `Resume`. Raises: BadFrame."""
    try:
        if _tagged(text).type != Resume.__struct_config__.tag:
            return None
    except (msgspec.MsgspecError, RecursionError):
        return None
    try:
        resume = _decode(text)
    except msgspec.ValidationError as error:
        raise BadFrame(f"Resume: {problem_of(error, Resume)}") from error
    if (resume.ticket is None) == (resume.from_s is None):
        raise BadFrame("Resume: send either ticket or from_s")
    return resume


class ResumableStream(DeepgramStream):
    """A `DeepgramStream` that a later connection can resume: it issues tickets, and continues from one.

    It knows which results its client received on earlier connections.
    """

    def __init__(
        self,
        socket: WebSocket,
        session: Session,
        projector: Projector,
        context: ConnectionContext,
        decoder: LiveDecoder,
        *,
        tickets: TicketService,
        tenant: bytes,
    ) -> None:
        """A session that is not resumable issues no tickets."""
        super().__init__(socket, session, projector, context, decoder)
        self._tickets = tickets
        self._tenant = tenant
        self._stream_id = projector.request_id  # the request id of the first connection
        self._unused: Ticket | None = None  # the restored ticket, until the first audio
        self._finals = 0  # over all connections of the stream
        self._had_finals = 0  # finals that the client has received
        self._had_s = 0.0  # stream time up to which it has received interims
        self._marked_s = tickets.now()
        self._every_s = EVERY_S
        self._mark_waits = False  # for a decision about rest
        if session.resumption is not None:
            tickets.opened()

    def leave(self) -> bool:
        """Send a last ticket and close, so that the client resumes elsewhere; return False if that is not possible."""
        if self.session.resumption is None or not self._transition(ConnectionEvent.SENT_AWAY):
            return False
        self._mark()
        return True

    def on_events(self, events: Sequence[Event], timing: StepTiming | None) -> None:
        """Handle the events of a step or a client frame; write each ticket at its position among them."""
        super().on_events(events, timing)
        resumption = self.session.resumption
        if resumption is None:
            return
        if self._mark_waits and not resumption.order.marking:
            self._mark()
        while self._state.sends and (saved := resumption.order.take_saved()) is not None:
            self._put(OutFrame(self._ticket(saved)))
            if self._state is State.LEAVING and not resumption.order.marking:
                self._transition(ConnectionEvent.LAST_TICKET)
            super().on_events(self.session.take(TicketTaken()), timing)
            self._mark_if_due()

    def _send_event(self, event: Event, timing: StepTiming | None) -> None:
        if self._knows(event):
            self._projector.frame(event, timing)  # not sent again, but needed for the sentence that follows
        else:
            super()._send_event(event, timing)

    def _knows(self, event: Event) -> bool:
        """Count a result; return whether the client received it on an earlier connection."""
        match event:
            case Final():
                self._finals += 1
                return self._finals <= self._had_finals
            case Partial():
                return event.start_s + event.duration_s <= self._had_s
            case SpeechStarted() | UtteranceGap():
                return self.session.channels[event.channel].segment.cursor_s <= self._had_s
        return False

    def _push(self, work: Sequence[Work]) -> None:
        super()._push(work)
        if self._unused is not None:
            self._tickets.used(self._unused)
            self._unused = None
        if self.usage is not None:
            self.usage.audio_received()
        self._mark_if_due()

    # Tickets

    def _mark_if_due(self) -> None:
        resumption = self.session.resumption
        if not self._state.reads or resumption is None or resumption.order.marking:
            return
        if resumption.unmarked_s >= self._every_s or self._tickets.ages(self._marked_s):
            self._mark()

    def _mark(self) -> None:
        """Request the next ticket."""
        assert self._recognition is not None, "only a running stream is marked"
        assert self.session.resumption is not None, "only resumable streams are marked"
        self._mark_waits = self.session.resumption.waits
        if self._mark_waits:  # the result that a rest waits for comes first
            return
        self.session.resumption.mark()
        self._marked_s = self._tickets.now()
        self._recognition.export()

    def _ticket(self, saved: SavedStream) -> bytes:
        """Return the Ticket frame for the saved state."""
        receipts = self._projector.receipts
        ticket = self._tickets.issue(
            saved,
            stream_id=self._stream_id,
            tenant=self._tenant,
            openings=self._projector.openings,
            receipts=None if receipts is None else receipts.chain.saved(),
        )
        return self._frame(ticket)

    def _frame(self, ticket: Ticket) -> bytes:
        assert self.session.resumption is not None, "it has tickets"
        audio_s = _seconds(self.session.resumption.replay_from_s(ticket.stream))
        self._metrics.tickets.inc()
        text = self._tickets.write(ticket)
        self._every_s = max(EVERY_S, len(text) / BYTES_A_SECOND)
        return _encode(TicketOut(text, audio_s, ticket.stream.finals, self._stream_id))

    # Resuming

    def _on_text(self, text: str) -> None:
        try:
            resume = parse_resume(text)
            if resume is not None:
                self._resume(resume)
                return
        except BadFrame as error:
            self._put(OutFrame(self._projector.complaint(str(error), text)))
            return
        super()._on_text(text)
        self._mark_if_due()  # a client that only sends KeepAlive needs a recent ticket too

    def _resume(self, resume: Resume) -> None:
        """Raises: BadFrame."""
        session = self.session
        if session.audio.received_s or session.keyterms.current is not session.options.keyterms:
            raise BadFrame("Resume must be the first message of a connection")
        if resume.ticket is None:
            session.take(StartAt(resume.from_s or 0.0, resume.finals))
            self._finals = self._had_finals = resume.finals
            self._put(OutFrame(self._resumed("replayed")))
            self._note_resumed()
        else:
            self._wait_for(self._continue_from(resume.ticket, resume))

    async def _continue_from(self, text: str, resume: Resume) -> None:
        """Continue the stream of a ticket, unless the connection ends while it is checked."""
        try:
            ticket = await self._read(text)
            if not self._state.reads:
                return
            self._restore(ticket)
        except TicketRefused as error:
            self._metrics.resumes.labels(error.code.value).inc()
            _log.info("ticket refused", request_id=self._request_id, code=error.code.value)
            answer = [_encode(ResumeRefused(error.code.value, str(error)))]
        else:
            self._unused = ticket
            self._stream_id, self._finals = ticket.stream_id, ticket.stream.finals
            self._had_finals, self._had_s = resume.finals, resume.cursor_s + SLACK_S
            # A new ticket at once: this one cannot be used again here, and the connection may be lost at any time.
            answer = [self._resumed("resumed"), self._frame(self._tickets.renewed(ticket))]
        self._note_resumed()
        for payload in answer:
            if self._state.reads:
                self._put(OutFrame(payload))

    async def _read(self, text: str) -> Ticket:
        """Read and check a client's ticket; waits for whether it was used. Raises: TicketRefused."""
        ticket = self._tickets.take(text, self._tenant)
        await self._tickets.refuse_if_used(ticket)
        return ticket

    def _restore(self, ticket: Ticket) -> None:
        """Restore the session, which has no audio yet. Raises: TicketRefused."""
        session, stream = self.session, ticket.stream
        assert session.resumption is not None, "checked by `_read`"
        assert self._recognition is not None, "the stream runs while frames are read"
        parts = stream.channels, stream.states, stream.auxiliary, stream.audio.cutters, ticket.openings
        if any(len(part) != len(session.channels) for part in parts):
            raise TicketRefused(TicketCode.MALFORMED, "invalid ticket: another number of channels")
        try:
            complete_restore = session.resumption.restoring(stream)
            self._recognition.restore(stream.states, stream.auxiliary)
        except WrongState as error:
            raise TicketRefused(TicketCode.MODEL, "the ticket was issued for another model") from error
        except (ValueError, ModelError) as error:
            raise TicketRefused(TicketCode.MALFORMED, "invalid ticket: its state does not fit this stream") from error
        complete_restore()
        self._projector.restore(ticket.openings)
        if self._projector.receipts is not None and ticket.receipts is not None:
            self._projector.receipts.chain.restore(ticket.receipts)

    def _resumed(self, outcome: str) -> bytes:
        self._metrics.resumes.labels(outcome).inc()
        _log.info("stream resumed", request_id=self._request_id, stream_id=self._stream_id, by=outcome)
        return _encode(Resumed(_seconds(self.session.audio.received_s), self._stream_id))

    def _note_resumed(self) -> None:
        if self.usage is not None:
            self.usage.resumed(self._stream_id, self.session.audio.received_s)


def _seconds(value: float) -> float:
    return round(value, 6)
