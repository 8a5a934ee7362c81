"""Messages that take time: key terms to build, a model to open, a ticket to read; reading pauses meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import structlog

from model.ctc.bias import Bias
from server.coordination.term_building import OwnersTerms
from server.recognition.active_session import ActiveSession
from server.streaming.closing import ConnectionEvent
from server.streaming.connection import Connection

_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.connection")

Change = Callable[[str | None], None]
"""A change of key terms; it gets the reason why they cannot be built, None if they are."""


class PatientConnection(Connection):
    """A connection that pauses reading while one of its messages takes time."""

    terms: OwnersTerms | None = None  # set while it is served; None: key terms are built on the event loop
    _waiting: asyncio.Task[None] | None = None  # handling a message; reading is paused

    async def run(self, recognition: ActiveSession) -> None:
        """Serve the accepted connection until it ends; `recognition` is its admitted stream."""
        try:
            await super().run(recognition)
        finally:
            if self._waiting is not None:
                self._waiting.cancel()

    def _wait_for(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` while reading is paused; an error in it breaks the connection, whose end cancels it."""
        if self._backpressure.hold():
            self._transport.pause_reading()
        self._waiting = asyncio.create_task(self._finish(work))
        self._waiting.add_done_callback(self._on_finished)

    async def _finish(self, work: Coroutine[Any, Any, None]) -> None:
        await work
        waits_on = self._waiting is not asyncio.current_task()  # `work` ended with another wait
        if waits_on or not self._state.reads or not self._backpressure.release():
            return
        if not self._backpressure.rises(self.backlog_s, self._decode_queue.fill):  # by audio decoded meanwhile
            self._resume_reading()

    def _once_built(self, asked: tuple[str, ...], read: Callable[[], Sequence[Bias]], change: Change) -> None:
        """Call `change`, which sets key terms, once they are built; reading is paused until then.

        `asked`: the terms, or the text that has them, as the client wrote it, which `read` reads. `change` gets the
        reason why they are not built, if the client's key or address asks for too many new ones.
        """
        terms = self.terms
        why = None if terms is None else terms.refusal(asked)
        if terms is None or why is not None or not terms.building.takes_long(biases := read()):
            change(why)
        else:
            self._wait_for(self._build(terms, asked, biases, change))

    async def _build(self, terms: OwnersTerms, asked: tuple[str, ...], biases: Sequence[Bias], change: Change) -> None:
        why = await terms.build(asked, biases, self.session.keyterms.decoder)
        if self._state.reads:
            change(why)

    def _on_finished(self, waiting: asyncio.Task[None]) -> None:
        error = None if waiting.cancelled() else waiting.exception()
        if error is not None:
            _log.error("a message could not be handled", request_id=self._request_id, exc_info=error)
            self._transition(ConnectionEvent.BROKEN)
