"""One replica: the parts that its endpoints share, and whether it is ready. `server.wiring` makes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from model.config import ModelConfig
from model.ctc.words import Decoder
from server.access.keys import KeyRing
from server.audio.decode_queue import DecodingPool
from server.operations.drain import Drain, OpenSessions
from server.operations.metrics import Metrics
from server.operations.request_ids import take_request_id
from server.protocols.deepgram.messages import ModelCard
from server.protocols.deepgram.query import Models
from server.recognition.recognizer import Recognizer
from server.recognition.session import Limits, Session, SessionOptions
from server.resume.office import TicketOffice
from server.settings import Settings
from server.streaming.deadlines import LiveLimits

MakeSession = Callable[[SessionOptions, ModelConfig, Decoder, Limits, int | None], Session]
STALL_S = 10.0  # one piece of engine work takes milliseconds; seconds mean that the device hangs


@dataclass(frozen=True, slots=True)
class Replica:
    """Everything an endpoint needs, nothing that belongs to one connection."""

    settings: Settings
    config: ModelConfig
    card: ModelCard
    models: Models
    decoder: Decoder
    recognizer: Recognizer
    sessions: OpenSessions
    drain: Drain
    metrics: Metrics
    keys: KeyRing
    limits: Limits
    live_limits: LiveLimits
    window_samples: int | None
    clock: Callable[[], float]
    decoding: DecodingPool
    tickets: TicketOffice
    make_session: MakeSession = Session

    @property
    def ready(self) -> bool:
        """What `/readyz` says. A full replica is ready: it refuses by itself."""
        return not self.sessions.draining and self.recognizer.ready(STALL_S)

    def session(self, options: SessionOptions, limits: Limits) -> Session:
        """Make a session for these options."""
        return self.make_session(options, self.config, self.decoder, limits, self.window_samples)


def new_request_id() -> str:
    """Return what names one request in headers, frames and logs: the name that `server.http.access_log` gave it."""
    return take_request_id()


def created_now() -> str:
    """Return the wall-clock time in the form that the protocol has for it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
