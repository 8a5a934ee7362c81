"""Playing of turns through Flux: when a server ends the turn of each recording, at one threshold."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from loadtest.generator.frames import TEXT, masked
from loadtest.generator.settings import SAMPLE_RATE
from loadtest.rulers.playing import pieces
from loadtest.rulers.turns.policies import Floats, Span
from loadtest.rulers.turns.silences import Turn
from tutti_asr_client.address import QueryValue

PATH = "/v2/listen"
TIMEOUT_MS = 60_000  # longer than any silence here: turns end by the score alone
LINGER = 25  # pieces of 20 ms after the recording, for its last events
CONFIGURE = masked(TEXT, b'{"type":"Configure"}')  # its answer says that the server has received everything
JUST_BEFORE = 0.999  # of a hold: an end that arrives after it has cut it all the same


def query(threshold: float) -> dict[str, QueryValue]:
    """Return the query of a stream whose turns end at this threshold."""
    return {
        "model": "flux-general-en",
        "encoding": "linear16",
        "sample_rate": SAMPLE_RATE,
        "eot_threshold": threshold,
        "eot_timeout_ms": TIMEOUT_MS,
    }


class _Word(msgspec.Struct, frozen=True):
    start: float


class _Message(msgspec.Struct, frozen=True):
    type: str
    event: str = ""
    words: tuple[_Word, ...] = ()


_decoder = msgspec.json.Decoder(_Message)


class FluxTake:
    """Pieces on a stream of `/v2/listen`, over once the server has answered everything sent."""

    language = ""

    def __init__(self, frames: tuple[bytes, ...]) -> None:
        self.frames = frames
        self.marks = frozenset([len(frames) + LINGER])
        self.over = False
        self._start_s = 0.0

    def started(self, start_s: float) -> None:
        """The connection is open."""
        self._start_s = start_s

    def after(self, piece: int, due_s: float) -> bytes:  # noqa: ARG002 - a take's
        """Return a `Configure` once everything was sent: its answer comes after all events."""
        return CONFIGURE


class TurnTake(FluxTake):
    """A recording with quiet after it; `ended_s` are the arrivals of `EndOfTurn` after its first sample was due."""

    def __init__(self, turn: Turn) -> None:
        super().__init__(pieces(turn.pcm.tobytes()))
        self.turn = turn
        self.ended_s = list[float]()
        self._words_s = list[float]()

    def message(self, frame: bytes, now: float) -> None:
        """Note an end of turn, and the words of it."""
        message = _decoder.decode(frame)
        if message.event == "EndOfTurn":
            self.ended_s.append(now - self._start_s)
            self._words_s += [word.start for word in message.words]
        self.over = self.over or message.type == "ConfigureSuccess"

    def spans(self) -> list[Span]:
        """Return the spans of the recording, with the server's words so far."""
        return list(self.turn.spans(lambda start_s: sum(word_s < start_s for word_s in self._words_s)))

    def fired(self, spans: Sequence[Span]) -> Floats:
        """Return the silence in each span at which the server ended the turn, (N,), infinite if it did not."""
        starts = [start_s for start_s, _ in self.turn.silences]
        first = dict[float, float]()
        for ended_s in self.ended_s:
            number = bisect.bisect_right(starts, ended_s) - 1
            if number >= 0:
                first.setdefault(starts[number], ended_s - starts[number])
        delays = [first.get(span.at_s, math.inf) for span in spans]
        longest = [math.inf if span.length_s is None else span.length_s * JUST_BEFORE for span in spans]
        return np.array(
            [min(d, most) if math.isfinite(d) else d for d, most in zip(delays, longest, strict=True)], np.float64
        )


def takes(turns: Sequence[Turn]) -> Iterator[TurnTake]:
    """Yield takes of the turns in order, again and again: as many in a row as there are turns play each once."""
    return (TurnTake(turn) for turn in itertools.cycle(turns))
