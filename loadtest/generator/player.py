"""Plays one recording to the server: a thin shell between pacer, connection and `Playback`.

Owns one connection. Knows no other stream, and decides neither what is played nor what comes next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from loadtest.generator.connection import Dialler
from loadtest.generator.frames import TEXT, masked
from loadtest.generator.pacer import Pacer
from loadtest.generator.playback import Outcome, Playback
from loadtest.generator.settings import STEP_S
from tutti_asr_client.errors import Refused

DIAL_AFTER_S = STEP_S / 2
"""A connection is opened in the middle of its first step: long enough before the step is sent, and long
enough after the previous recording's end that its slot is free again."""

CLOSE_STREAM = masked(TEXT, b'{"type":"CloseStream"}')


class Stage(Protocol):
    """Where players play."""

    @property
    def end_s(self) -> float:
        """When whatever still plays is cut; may be moved forward."""
        ...

    def ended(self, player: Player, outcome: Outcome | None) -> None:
        """This player is done; None when it was over before it began."""
        ...


class Player:
    """Sends each message at its scheduled time and never waits for an answer."""

    __slots__ = ("_clock", "_connection", "_dialler", "_opening", "_over", "_pacer", "_playback", "_stage", "number")

    def __init__(
        self,
        playback: Playback,
        stage: Stage,
        pacer: Pacer,
        dialler: Dialler,
        clock: Callable[[], float],
        *,
        number: int = 0,
    ) -> None:
        self.number = number  # among the players of a level
        self._playback = playback
        self._stage = stage
        self._pacer = pacer
        self._dialler = dialler
        self._clock = clock
        self._connection = dialler.connection(self)
        self._opening: asyncio.Task[None] | None = None
        self._over = False
        pacer.at(playback.start_s + DIAL_AFTER_S, self._dial)

    def opened(self, now: float) -> None:
        """The server has accepted the stream."""
        self._playback.opened(now)
        self._tick()

    def message(self, frame: bytes, now: float) -> None:
        """The server says something."""
        self._playback.message(frame, now)

    def refused(self, refusal: Refused, now: float) -> None:
        """The server has no room, or does not want us."""
        self._end(self._playback.refused(refusal, now))

    def closed(self, code: int, reason: str, now: float) -> None:
        """The connection has ended."""
        self._end(self._playback.closed(code, reason, now))

    def abandon(self, problem: str) -> None:
        """End it from our side: it has had its time."""
        if self._opening is not None:
            self._opening.cancel()
        self._end(self._playback.failed(problem, self._clock()))
        self._connection.abort()

    def _dial(self) -> None:
        now = self._clock()
        if now >= self._stage.end_s:
            self._end(None)
        else:
            self._playback.dialled(now)
            self._opening = asyncio.get_running_loop().create_task(self._open())

    async def _open(self) -> None:
        try:
            await self._dialler.open(self._connection)
        except OSError as error:
            self._end(self._playback.failed(f"cannot connect: {error.strerror or error}", self._clock()))

    def _tick(self) -> None:
        """Send what is due; when nothing is left, or the level is over, close the stream."""
        playback, connection = self._playback, self._connection
        if self._over or not connection.is_open:
            return
        while (scheduled_s := playback.next_s) is not None:
            now = self._clock()
            if scheduled_s > now:
                self._pacer.at(scheduled_s, self._tick)
                return
            if scheduled_s >= self._stage.end_s:
                break
            connection.send(playback.take(now))
        playback.close(playback.end_s if scheduled_s is None else scheduled_s)
        connection.send(CLOSE_STREAM)

    def _end(self, outcome: Outcome | None) -> None:
        if not self._over:
            self._over = True
            self._stage.ended(self, outcome)
