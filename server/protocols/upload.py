"""One uploaded recording, through the same engine as live streams but behind them, a few seconds of it at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from server.audio.recording import BLOCK_S
from server.audio.recording_part import Recording
from server.errors import ClientGone, RecognitionFailed, Refused, ServerDraining
from server.recognition.events import Closed, CloseReason, Event, Final, FinalReason, StepTiming, StreamBroken
from server.recognition.recognition import Recognition
from server.recognition.session import Session
from server.text.formatting import FormattedWord, Sentences, Style

Tell = Callable[[Sequence[FormattedWord]], None]
IN_FLIGHT_S = 4.0  # enough to keep a row of every batch busy while the next block is decoded
MAX_BACKLOG_S = IN_FLIGHT_S + 2 * BLOCK_S


class Upload:
    """Feeds a recording to its session as fast as results come back, and gathers the words."""

    def __init__(self, session: Session, style: Style, tell: Tell | None = None) -> None:
        """`tell` is given the words of each segment as it ends."""
        self.session = session
        self._tell = tell
        self._sentences = [Sentences(style) for _ in session.channels]
        self._words: list[list[FormattedWord]] = [[] for _ in session.channels]
        self._waiter: asyncio.Future[None] | None = None
        self._error: Refused | None = None
        self._ended = False

    @property
    def backlog_s(self) -> float:
        """Audio in the engine."""
        return self.session.backlog_s

    def drain(self) -> None:
        """Give up: the client will have to send it again, to another replica."""
        self._fail(ServerDraining("the server is restarting"))

    def on_events(self, events: Sequence[Event], timing: StepTiming | None) -> None:  # noqa: ARG002 - a sink's
        """Take what a step changed."""
        for event in events:
            if isinstance(event, Final):
                ends = event.reason is not FinalReason.MAX_LEN
                words = self._sentences[event.channel].final(event.words, ends=ends)
                self._words[event.channel] += words
                if self._tell is not None:
                    self._tell(words)
            elif isinstance(event, Closed):
                self._ended = True
            elif isinstance(event, StreamBroken):
                self._fail(RecognitionFailed("recognition failed"))
        if self._ended or self.session.backlog_s <= IN_FLIGHT_S / 2:
            self._wake()

    async def run(
        self,
        recording: Recording,
        recognition: Recognition,
        gone: Callable[[], Awaitable[bool]],
        clock: Callable[[], float],
    ) -> list[list[FormattedWord]]:
        """Recognise the whole recording; return each channel's words. Raises: Refused, ClientGone."""
        while (block := await asyncio.to_thread(recording.next_block)) is not None:
            if await gone():
                raise ClientGone
            recognition.push(self.session.samples(block, clock()))
            while self.session.backlog_s > IN_FLIGHT_S:
                await self._next_result()
        work, events = self.session.close(CloseReason.CLOSE_STREAM, clock())
        recognition.push(work)
        self.on_events(events, None)
        while not self._ended:
            await self._next_result()
        return self._words

    async def _next_result(self) -> None:
        if self._error is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._error is not None:
            raise self._error

    def _fail(self, error: Refused) -> None:
        self._error = error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
