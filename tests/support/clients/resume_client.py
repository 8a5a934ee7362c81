"""A client that loses its server at given times and resumes at the next one, and the results of its caller."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.support.servers.live_server import Client, Frame, LiveServer
from tests.support.servers.server_process import ServerProcess

CHUNK_S = 0.25
AHEAD_S = 1.6  # of audio after the latest ticket: over one ticket interval, far below any backlog limit
TICKET_BYTES_A_SECOND = 100_000  # larger tickets come less often


@dataclass
class Received:
    """Frames of all connections, without repeated results."""

    finals: list[Frame] = field(default_factory=list)
    interims: list[Frame] = field(default_factory=list)
    others: list[Frame] = field(default_factory=list)
    ticket: Frame | None = None
    tickets: int = 0
    cursor_s: float = 0.0
    replayed_s: list[float] = field(default_factory=list)

    def take(self, frame: Frame) -> None:
        kind = frame["type"]
        if kind == "Ticket":
            assert frame["finals"] <= len(self.finals)
            self.ticket, self.tickets = frame, self.tickets + 1
        elif kind == "Results":
            end_s = frame["start"] + frame["duration"]
            if frame["is_final"]:
                self.finals.append(frame)
            else:
                self.interims.append(frame)
            self.cursor_s = max(self.cursor_s, end_s)
        else:
            self.others.append(frame)

    @property
    def results(self) -> list[Any]:
        """The finals, without fields of the connection."""
        kept = ("channel_index", "start", "duration", "is_final", "speech_final", "from_finalize", "channel")
        return [[final[name] for name in kept] for final in self.finals]

    @property
    def events(self) -> list[Frame]:
        """Speech events."""
        return [frame for frame in self.others if frame["type"] in ("SpeechStarted", "UtteranceEnd")]


class ResumingClient:
    """Streams one recording over several servers."""

    def __init__(
        self,
        servers: Sequence[LiveServer | ServerProcess],
        audio: np.ndarray,
        rate: int,
        *,
        segment_s: float = 0.0,
        **query: Any,
    ) -> None:
        """`audio` is (S, C) in the encoding of the query. `segment_s`: of audio that is sent again before a ticket."""
        self._servers, self._audio, self._rate = servers, audio, rate
        self._ahead_s = AHEAD_S + segment_s
        self._query = {"sample_rate": rate, "channels": audio.shape[1], "resumable": "true"} | query
        self.received = Received()

    def run(self, losses: Sequence[float]) -> Received:
        """Stream it, losing the connection after each of `losses` seconds; the next server takes over."""
        for number, loss_s in enumerate((*losses, None)):
            server = self._servers[number % len(self._servers)]
            client = server.listen(**self._query)
            position = self._resume(client) if number else 0
            self._stream(client, position, loss_s)
            if loss_s is None:
                for frame in client.finish():
                    self.received.take(frame)
            client.socket.socket.close()
        return self.received

    def _resume(self, client: Client) -> int:
        received = self.received
        if received.ticket is None:
            client.say("Resume", from_s=0, finals=0)
        else:
            client.say(
                "Resume", ticket=received.ticket["ticket"], finals=len(received.finals), cursor_s=received.cursor_s
            )
        answer = client.receive()
        assert answer["type"] == "Resumed", answer
        if received.ticket is not None:
            assert answer["audio_s"] == received.ticket["audio_s"]
            assert answer["stream_id"] == received.ticket["stream_id"]
            renewed = client.receive()
            assert renewed["type"] == "Ticket"
            received.take(renewed)
        return round(answer["audio_s"] * self._rate)

    def _stream(self, client: Client, position: int, loss_s: float | None) -> None:
        until = len(self._audio) if loss_s is None else min(len(self._audio), max(position, round(loss_s * self._rate)))
        began_s = position / self._rate
        while position < until:
            end = min(until, position + round(CHUNK_S * self._rate))
            client.send(self._audio[position:end].tobytes())
            position = end
            while position / self._rate - self._safe_s(began_s) > self._ahead_s + self._ticket_s():
                self.received.take(client.receive())

    def _ticket_s(self) -> float:
        ticket = self.received.ticket
        return 0.0 if ticket is None else len(ticket["ticket"]) / TICKET_BYTES_A_SECOND

    def _safe_s(self, began_s: float) -> float:
        ticket = self.received.ticket
        return began_s if ticket is None else max(began_s, ticket["audio_s"])
