"""State machine of a live connection's end: states, events, and the table of transitions.

`server.streaming.connection` acts when a state is entered; all other code queries what the state permits. An event
without effect in a state keeps that state; one that cannot occur there is ILLEGAL, a defect of this server.
"""

from __future__ import annotations

from enum import Enum

from server.errors import CloseReason, IllegalTransition


class State(Enum):
    """State of a connection. `reads`: client frames are processed; `sends`: results are sent, and slots are held."""

    OPENING = "opening", False, True  # admitted, not yet attached to its WebSocket
    OPEN = "open", True, True
    LEAVING = "leaving", False, True  # draining: a resumable stream waits for its last ticket
    FLUSHING = "flushing", False, True  # ended by the client, the server or a time limit: pending results are sent
    CLOSING = "closing", False, False  # the close frame is queued after the outbox
    CUT = "cut", False, False  # aborted, without a close frame or before the client received it
    GONE = "gone", False, False  # the socket is closed, all resources are released

    def __init__(self, label: str, reads: bool, sends: bool) -> None:
        self.label = label
        self.reads = reads
        self.sends = sends


class ConnectionEvent(Enum):
    """Events of a connection; `reason` is recorded if the event ends the connection."""

    ATTACHED = "attached", None
    CLIENT_CLOSES = "client closes", CloseReason.CLOSE_STREAM
    SERVER_DRAINS = "server drains", CloseReason.DRAIN
    SENT_AWAY = "sent away", None
    LAST_TICKET = "last ticket", CloseReason.DRAIN
    IDLE = "idle", CloseReason.IDLE
    TOO_LONG = "too long", CloseReason.TOO_LONG
    LAST_RESULT = "last result", None  # keeps the reason of the flush
    STALLED = "stalled", CloseReason.STALLED
    BROKEN = "broken", CloseReason.BROKEN
    TOO_FAST = "too fast", CloseReason.TOO_FAST
    BAD_AUDIO = "bad audio", CloseReason.BAD_AUDIO
    NOT_UNDERSTOOD = "not understood", CloseReason.NOT_UNDERSTOOD
    SLOW_CONSUMER = "slow consumer", CloseReason.SLOW_CONSUMER
    CLOSE_TIMED_OUT = "close timed out", None
    SOCKET_GONE = "socket gone", CloseReason.CLIENT_GONE

    def __init__(self, label: str, reason: CloseReason | None) -> None:
        self.label = label
        self.reason = reason


OPENING, OPEN, LEAVING, FLUSHING, CLOSING, CUT, GONE = State
ILLEGAL = None
STATES = tuple(State)
E = ConnectionEvent
# fmt: off
TABLE: dict[ConnectionEvent, tuple[State | None, ...]] = {
    # in state         OPENING   OPEN      LEAVING   FLUSHING  CLOSING   CUT       GONE
    E.ATTACHED:        (OPEN,    ILLEGAL,  ILLEGAL,  FLUSHING, CLOSING,  ILLEGAL,  ILLEGAL),
    E.CLIENT_CLOSES:   (ILLEGAL, FLUSHING, ILLEGAL,  FLUSHING, ILLEGAL,  ILLEGAL,  ILLEGAL),
    E.SERVER_DRAINS:   (FLUSHING, FLUSHING, CLOSING, FLUSHING, CLOSING,  CUT,      GONE),
    E.SENT_AWAY:       (OPENING, LEAVING,  LEAVING,  FLUSHING, CLOSING,  CUT,      GONE),
    E.LAST_TICKET:     (ILLEGAL, ILLEGAL,  CLOSING,  ILLEGAL,  ILLEGAL,  ILLEGAL,  ILLEGAL),
    E.IDLE:            (ILLEGAL, FLUSHING, LEAVING,  FLUSHING, ILLEGAL,  ILLEGAL,  ILLEGAL),
    E.TOO_LONG:        (ILLEGAL, FLUSHING, LEAVING,  FLUSHING, ILLEGAL,  ILLEGAL,  ILLEGAL),
    E.LAST_RESULT:     (ILLEGAL, ILLEGAL,  ILLEGAL,  CLOSING,  CLOSING,  CUT,      GONE),
    E.STALLED:         (ILLEGAL, CLOSING,  CLOSING,  CLOSING,  ILLEGAL,  ILLEGAL,  ILLEGAL),
    E.BROKEN:          (CLOSING, CLOSING,  CLOSING,  CLOSING,  CLOSING,  CUT,      GONE),
    E.TOO_FAST:        (ILLEGAL, CLOSING,  ILLEGAL,  CLOSING,  ILLEGAL,  ILLEGAL,  ILLEGAL),
    E.BAD_AUDIO:       (ILLEGAL, CLOSING,  ILLEGAL,  CLOSING,  ILLEGAL,  CUT,      ILLEGAL),
    E.NOT_UNDERSTOOD:  (ILLEGAL, FLUSHING, ILLEGAL,  FLUSHING, ILLEGAL,  ILLEGAL,  ILLEGAL),
    E.SLOW_CONSUMER:   (ILLEGAL, CUT,      CUT,      CUT,      ILLEGAL,  CUT,      ILLEGAL),
    E.CLOSE_TIMED_OUT: (ILLEGAL, ILLEGAL,  ILLEGAL,  ILLEGAL,  CUT,      CUT,      ILLEGAL),
    E.SOCKET_GONE:     (ILLEGAL, GONE,     GONE,     GONE,     GONE,     GONE,     GONE),
}
# fmt: on
_NEXT = {(state, event): after for event, row in TABLE.items() for state, after in zip(STATES, row, strict=True)}


def next_state(state: State, event: ConnectionEvent) -> State:
    """Return the next state. Raises: IllegalTransition."""
    after = _NEXT[state, event]
    if after is None:
        raise IllegalTransition(f"{event.label} while {state.label}")
    return after
