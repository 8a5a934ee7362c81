"""Real-time playing of recordings as a microphone delivers them: pieces of 20 ms, then silence until the take is over.

Owns the schedule of the sends and the number of live streams. A `Take` decides what is sent in addition to the audio,
and what is measured. The clock of a recording starts when its connection is open and its place on the wheel has come,
or after the pause that follows the recording before it. So a sample at `t` seconds is due at the start plus `t`, and a
piece is sent when its last sample is due.

A server that runs on the same cores pays for what the player spends, so the loop over the pieces is short: the frames
are made once for each recording, one timer serves all streams, and a take is asked only after the pieces it names.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from loadtest.generator.connection import Dialer
from loadtest.generator.frames import BINARY, TEXT, masked
from loadtest.generator.latencies import Latencies
from loadtest.generator.settings import SAMPLE_RATE
from loadtest.generator.timers import Pacer, Wheel
from tutti_asr_client.errors import Refused

PIECE_S = 0.02  # Source: pipecat's stt-benchmark, `chunk_duration_ms`
PIECE_SAMPLES = round(PIECE_S * SAMPLE_RATE)
SILENCE_S = 10.0  # after a recording, at most. Source: stt-benchmark, `max_silence_timeout_secs`
PAUSE_PIECES = 50  # silence between two recordings of one connection: a second, as while an agent answers
SPREAD_S = 3.0  # the streams of a level begin at random times within this period, which is not measured
CLOSE_WITHIN_S = 10.0  # for the last connections of a level

LAST_PAUSE = -1  # piece before the recording
LAST_SILENCE = round(SILENCE_S / PIECE_S)  # piece after the recording
SILENCE = masked(BINARY, bytes(2 * PIECE_SAMPLES))
CLOSE_STREAM = masked(TEXT, b'{"type":"CloseStream"}')


class Take(Protocol):
    """One recording on a connection."""

    language: str  # requested; empty: the server's default
    frames: tuple[bytes, ...]  # the recording's pieces, masked; the last one is filled with zeros
    marks: frozenset[int]  # pieces after which `after` is called

    def started(self, start_s: float) -> None:
        """The recording's first sample is due at this clock time."""
        ...

    def after(self, piece: int, due_s: float) -> bytes | None:
        """Return a masked control frame to send after this marked piece; pieces after the recording are silence."""
        ...

    def message(self, frame: bytes, now: float) -> None:
        """A text message was received."""
        ...

    @property
    def over(self) -> bool:
        """Whether everything was measured."""
        ...


@dataclass(slots=True)
class Played:
    """Result of a level: the measured takes that are over, and what went wrong."""

    takes: list[Take] = field(default_factory=list)
    problems: Counter[str] = field(default_factory=Counter)
    lag: Latencies = field(default_factory=Latencies)  # of the sends after their due times
    cpu_cores: float = 0.0  # of this process


async def play(
    takes: Iterator[Take],
    streams: int,
    wanted: int,
    dialer: Dialer,
    rng: random.Random,
    *,
    per_connection: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> Played:
    """Play takes on `streams` live connections until `wanted` that began after the warm-up have ended.

    The others play on meanwhile, so that the load is constant. A connection plays `per_connection` takes of one
    language, with silence between them. An exception in a take ends the level.
    """
    spread_s = SPREAD_S if streams > 1 else 0.0
    level = _Level(takes, wanted, dialer, clock, clock() + spread_s, per_connection=per_connection)
    begun_s, cpu_s = clock(), time.process_time()
    for _ in range(streams):
        level.begin(clock() + rng.random() * spread_s)
    try:
        await level.done.wait()
        level.played.cpu_cores = (time.process_time() - cpu_s) / max(clock() - begun_s, PIECE_S)
    finally:
        await level.end()
    return level.played


class _Level:
    """The live streams of one level."""

    def __init__(
        self,
        takes: Iterator[Take],
        wanted: int,
        dialer: Dialer,
        clock: Callable[[], float],
        measured_from_s: float,
        *,
        per_connection: int,
    ) -> None:
        self.per_connection = per_connection
        self.played = Played()
        self._add_lag = self.played.lag.add
        self.done = asyncio.Event()
        self.dialer, self.clock = dialer, clock
        loop = asyncio.get_running_loop()
        self.pacer, self.wheel = Pacer(loop, clock), Wheel(loop, clock, PIECE_S)
        self._takes, self._wanted, self._measured_from_s = takes, wanted, measured_from_s
        self._counted = self._ended = 0
        self._players: set[_Player] = set()
        self._quiet = asyncio.Event()

    def begin(self, start_s: float) -> None:
        """Dial the next take at this time."""
        if not self.done.is_set():
            self._dial(start_s, *self.next_take(start_s))

    def next_take(self, start_s: float) -> tuple[Take, bool]:
        """Return the next take, which begins at this time, and whether it is measured."""
        measured = start_s >= self._measured_from_s and self._counted < self._wanted
        self._counted += measured
        return next(self._takes), measured

    def _dial(self, start_s: float, take: Take, measured: bool) -> None:
        player = _Player(take, self, measured=measured)
        self._players.add(player)
        self.pacer.at(start_s, player.dial)

    def sent(self, due_s: float) -> None:
        """A piece was sent that was due at this clock time."""
        self._add_lag(self.clock() - due_s)

    def finished(self, player: _Player, problem: str | None) -> None:
        """A take is over, or has failed: begin the next one, on its connection if that plays on."""
        self._count(player, problem)
        now = self.clock()
        if self.done.is_set() or problem is not None or not player.goes_on:
            player.end()
            # A refused stream must not become a busy loop of handshakes.
            self.begin(now + (PIECE_S if problem is None else 1.0))
            return
        take, measured = self.next_take(now + PAUSE_PIECES * PIECE_S)
        if take.language == player.take.language:
            player.play(take, PAUSE_PIECES, measured=measured)
        else:
            player.end()
            self._dial(now + PIECE_S, take, measured)

    def _count(self, player: _Player, problem: str | None) -> None:
        if player.measured:
            self._ended += 1
            if problem is None:
                self.played.takes.append(player.take)
        if problem is not None:
            self.played.problems[problem] += 1
        if self._ended >= self._wanted:
            self.done.set()

    def closed(self, player: _Player) -> None:
        """A connection has ended."""
        self._players.discard(player)
        if not self._players:
            self._quiet.set()

    async def end(self) -> None:
        """Close all connections."""
        self.done.set()
        self.pacer.close()
        self.wheel.close()
        for player in tuple(self._players):
            player.leave()
        if self._players:
            try:
                await asyncio.wait_for(self._quiet.wait(), CLOSE_WITHIN_S)
            except TimeoutError:
                for player in tuple(self._players):
                    player.abort()


class _Player:
    """Plays takes on a connection of its own, one after the other."""

    __slots__ = (
        "_connection", "_frames", "_left", "_level", "_marks", "_opening", "_over", "_piece", "measured", "take",
    )  # fmt: skip

    def __init__(self, take: Take, level: _Level, *, measured: bool) -> None:
        self._level = level
        self._connection = level.dialer.connection(self, take.language)
        self._opening: asyncio.Task[None] | None = None
        self._over = False
        self._left = level.per_connection
        self.play(take, 0, measured=measured)

    def play(self, take: Take, pause_pieces: int, *, measured: bool) -> None:
        """Play this take next, after this number of pieces of silence."""
        self.take, self.measured = take, measured
        self._frames = take.frames
        self._marks = take.marks | {LAST_PAUSE, len(take.frames) + LAST_SILENCE}
        self._piece = -pause_pieces
        self._left -= 1

    @property
    def goes_on(self) -> bool:
        """Whether the connection is open for another take."""
        return self._left > 0 and self._connection.is_open

    def dial(self) -> None:
        self._opening = asyncio.get_running_loop().create_task(self._open())

    async def _open(self) -> None:
        try:
            await self._level.dialer.open(self._connection)
        except OSError as error:
            self._finish(f"cannot connect: {error.strerror or error}")
            self._level.closed(self)

    def opened(self, now: float) -> None:  # noqa: ARG002 - a listener's
        """The server has accepted the stream."""
        if self._over:
            self._connection.send(CLOSE_STREAM)
        else:
            self.take.started(self._level.wheel.add(self))

    def due(self, due_s: float) -> None:
        """Send the piece that is due."""
        level, piece, frames = self._level, self._piece, self._frames
        if self._over or not self._connection.is_open:
            return
        self._connection.send(frames[piece] if 0 <= piece < len(frames) else SILENCE)
        level.sent(due_s)
        self._piece = piece + 1
        if piece in self._marks:
            self._after(piece, due_s)

    def _after(self, piece: int, due_s: float) -> None:
        """Ask the take what follows a marked piece."""
        take = self.take
        if piece == LAST_PAUSE:
            take.started(due_s)
            return
        if piece in take.marks:
            control = take.after(piece, due_s)
            if control is not None:
                self._connection.send(control)
        if take.over:
            self._finish(None)
        elif piece >= len(self._frames) + LAST_SILENCE:
            self._finish(f"nothing to measure within {SILENCE_S:g} s of silence")

    def message(self, frame: bytes, now: float) -> None:
        """A text message was received."""
        if not self._over:
            self.take.message(frame, now)
            if self.take.over:
                self._finish(None)

    def refused(self, refusal: Refused, now: float) -> None:  # noqa: ARG002 - a listener's
        """The server refused the handshake."""
        self._finish(f"refused: {refusal}")
        self._level.closed(self)

    def closed(self, code: int, reason: str, now: float) -> None:  # noqa: ARG002 - a listener's
        """The connection has ended."""
        self._finish(f"closed with {code} {reason}".rstrip())
        self._level.closed(self)

    def leave(self) -> None:
        """Close the stream before its take is over; without a connection, forget it."""
        self.end()
        if not self._connection.is_open and (self._opening is None or self._opening.done()):
            self._level.closed(self)

    def abort(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
        self._connection.abort()

    def _finish(self, problem: str | None) -> None:
        if not self._over:
            self._level.finished(self, problem)

    def end(self) -> None:
        """Send no more audio, and close the stream if it is open."""
        was_over, self._over = self._over, True
        self._level.wheel.remove(self)
        if self._connection.is_open and not was_over:
            self._connection.send(CLOSE_STREAM)


def pieces(samples: bytes) -> tuple[bytes, ...]:
    """Return 16-bit audio as masked frames of one piece each; the last one is filled with zeros."""
    size = 2 * PIECE_SAMPLES
    return tuple(masked(BINARY, samples[at : at + size].ljust(size, b"\0")) for at in range(0, len(samples), size))
