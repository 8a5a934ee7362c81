"""Events of a stream's connections, and their totals."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from tutti_asr_client.continuity import Beginning
from tutti_asr_client.errors import ClientError

KEPT = 1000
"""Number of latest reconnections whose times are kept."""


@dataclass(frozen=True, slots=True)
class Connected:
    """A connection continues the stream, `took_s` after the loss; `replay_s` seconds of audio are sent again."""

    url: str
    request_id: str | None
    beginning: Beginning
    replay_s: float
    took_s: float


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """All audio so far has been sent on the new connection, `took_s` after the loss."""

    took_s: float


@dataclass(frozen=True, slots=True)
class Waiting:
    """There is no connection because of `error`; the next attempt is in `seconds`, at `url`."""

    error: ClientError
    url: str
    seconds: float
    failures: int


@dataclass(frozen=True, slots=True)
class TicketRefused:
    """A server refused the ticket; the audio since the last final is sent again."""

    code: str


@dataclass(frozen=True, slots=True)
class AudioLost:
    """`seconds` of audio could not be sent again because they were no longer in memory."""

    seconds: float


Event = Connected | CaughtUp | Waiting | TicketRefused | AudioLost


@dataclass(slots=True)
class ConnectionEvents:
    """Totals of a stream's events; the times are those of the latest reconnections, in seconds."""

    connections: int = 0
    resumed: int = 0
    replayed: int = 0
    replayed_s: float = 0.0
    lost_s: float = 0.0
    waits: int = 0
    refused_tickets: list[str] = field(default_factory=list)
    resume_s: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))  # from the loss to the continuation
    caught_up_s: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))  # from the loss to all audio sent

    @property
    def reconnects(self) -> int:
        """Number of connections after the first."""
        return max(0, self.connections - 1)

    def add(self, event: Event) -> None:
        """Count an event."""
        match event:
            case Connected(beginning=beginning, replay_s=replay_s, took_s=took_s):
                self.connections += 1
                self.resumed += beginning is Beginning.TICKET
                self.replayed += beginning is Beginning.REPLAY
                if self.connections > 1:
                    self.replayed_s += replay_s
                    self.resume_s.append(took_s)
            case CaughtUp(took_s=took_s):
                self.caught_up_s.append(took_s)
            case Waiting():
                self.waits += 1
            case TicketRefused(code=code):
                self.refused_tickets.append(code)
            case AudioLost(seconds=seconds):
                self.lost_s += seconds
