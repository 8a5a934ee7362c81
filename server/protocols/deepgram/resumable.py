"""A connection in Deepgram's protocol whose stream can go on elsewhere: it gives tickets, and takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from server.errors import BadFrame
from server.protocols.deepgram.deepgram import Projector
from server.protocols.deepgram.live import LiveStream
from server.protocols.deepgram.resume_messages import Resume, parse_resume
from server.protocols.deepgram.resuming import Resuming
from server.recognition.events import CloseReason, Event, StepTiming
from server.recognition.recognition import Recognition
from server.recognition.session import Session
from server.recognition.steps import Work
from server.resume.office import TicketOffice
from server.streaming.outbox import FrameKind, OutFrame


class ResumableStream(LiveStream):
    """A `LiveStream` of which other connections can be the continuation."""

    def __init__(
        self, socket: Any, session: Session, projector: Projector, *, office: TicketOffice, tenant: bytes, **rest: Any
    ) -> None:
        """Take what a `LiveStream` takes besides."""
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
        while self._reason is None and (saved := self._session.delivery.take_saved()) is not None:
            self._put(OutFrame(self._resuming.ticket(saved), FrameKind.OTHER))
            if self._leaving and not self._session.delivery.marking:
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

    def _mark(self, recognition: Recognition) -> None:
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
