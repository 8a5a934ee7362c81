"""A live connection in Deepgram's protocol: its frames in, its frames out. What is the same in all protocols is
`server.streaming.connection`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from starlette.websockets import WebSocket

from server.audio.decode_queue import DecodingPool
from server.audio.decoder import LiveDecoder
from server.audio.formats import AudioForm
from server.errors import BadFrame
from server.operations.metrics import Metrics
from server.protocols.deepgram.configuring import configure
from server.protocols.deepgram.deepgram import Projector
from server.protocols.deepgram.deepgram_frames import CloseStream, Configure, Finalize, parse_frame
from server.recognition.events import CloseReason, Event, Final, FinalReason, Partial, StepTiming
from server.recognition.session import Session
from server.streaming.connection import Connection
from server.streaming.deadlines import LiveLimits
from server.streaming.outbox import FrameKind, OutFrame


class LiveStream(Connection):
    """A connection in Deepgram's protocol."""

    protocol = "deepgram"

    def __init__(
        self,
        socket: WebSocket,
        session: Session,
        projector: Projector,
        *,
        limits: LiveLimits,
        metrics: Metrics,
        clock: Callable[[], float],
        request_id: str,
        form: AudioForm,
        decoder: LiveDecoder,
        pool: DecodingPool,
        tags: Sequence[str] = (),
    ) -> None:
        super().__init__(
            socket,
            session,
            limits=limits,
            metrics=metrics,
            clock=clock,
            request_id=request_id,
            form=form,
            decoder=decoder,
            pool=pool,
        )
        self._projector = projector
        self._tags = tuple(tags)

    def _facts(self) -> dict[str, object]:
        return {"tags": self._tags} if self._tags else {}

    def _on_binary(self, chunk: bytes) -> None:
        if not chunk:
            self._close(CloseReason.CLOSE_STREAM)
            return
        self._metrics.audio_bytes.inc(len(chunk))
        self._decode(chunk)

    def _on_text(self, text: str) -> None:
        try:
            action = parse_frame(text, len(self._session.channels))
        except BadFrame as error:
            self._put(OutFrame(self._projector.complaint(str(error), text), FrameKind.OTHER))
            return
        match action:
            case Finalize(channel):
                self._lane.settle(lambda: self._finalize(channel), self._deadlines.heard_s)
            case CloseStream():
                self._close(CloseReason.CLOSE_STREAM)
            case Configure(keyterms):
                self._lane.then(lambda: self._configure(keyterms))

    def _configure(self, keyterms: list[str] | None) -> None:
        self._put(OutFrame(configure(self._session, self._projector, keyterms), FrameKind.OTHER))

    def _say_undecodable(self, why: str) -> None:
        self._put(OutFrame(self._projector.undecodable(why), FrameKind.OTHER))

    def _say(self, event: Event, timing: StepTiming | None) -> None:
        payload = self._projector.frame(event, timing, self._writer.write_s)
        self._count(event)
        if payload is not None and not self._known(event):
            self._put(_frame(event, payload, timing))
        self._end_with(event)

    def _known(self, event: Event) -> bool:  # noqa: ARG002 - of a stream that is a continuation
        """Whether the client has had this on an earlier connection."""
        return False


def _frame(event: Event, payload: bytes, timing: StepTiming | None) -> OutFrame:
    if isinstance(event, Partial):
        return OutFrame(payload, FrameKind.INTERIM, timing)
    if isinstance(event, Final):
        return OutFrame(payload, FrameKind.FINAL, timing, flushed=event.reason is not FinalReason.MAX_LEN)
    return OutFrame(payload, FrameKind.OTHER)
