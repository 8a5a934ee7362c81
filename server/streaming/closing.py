"""How a live connection ends: its states, the events that end it, and the one table of what each does in each state.

`server.streaming.connection` acts on entering a state; everything else asks the state what it permits. An event that
means nothing in a state leads back to that state; one that cannot occur there is ILLEGAL, a defect of this server.
"""

from __future__ import annotations

from enum import Enum

from server.errors import CloseReason, IllegalTransition


class State(Enum):
    """State of a connection. `reads`: client frames are taken; `sends`: results go out, and slots are held."""

    OPENING = "opening", False, True  # admitted, not attached to its WebSocket yet
    OPEN = "open", True, True
    LEAVING = "leaving", False, True  # a resumable stream waits for the ticket that sends its client elsewhere
    FLUSHING = "flushing", False, True  # the client, the server or a time limit ended it: pending results go out
    CLOSING = "closing", False, False  # the close frame is behind the outbox
    CUT = "cut", False, False  # aborted, without a close frame or before the client took it
    GONE = "gone", False, False  # the socket is gone, everything is released

    def __init__(self, label: str, reads: bool, sends: bool) -> None:
        self.label = label
        self.reads = reads
        self.sends = sends


class ConnectionEvent(Enum):
    """Events of a connection; `reason` is the one recorded if the event ends the connection."""

    ATTACHED = "attached", None
    CLIENT_CLOSES = "client closes", CloseReason.CLOSE_STREAM
    SERVER_DRAINS = "server drains", CloseReason.DRAIN
    SENT_AWAY = "sent away", None
    LAST_TICKET = "last ticket", CloseReason.DRAIN
    IDLE = "idle", CloseReason.IDLE
    TOO_LONG = "too long", CloseReason.TOO_LONG
    LAST_RESULT = "last result", None  # the reason is that of the flush
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
    E.NOT_UNDERSTOOD:  (ILLEGAL, CLOSING,  ILLEGAL,  CLOSING,  ILLEGAL,  ILLEGAL,  ILLEGAL),
    E.SLOW_CONSUMER:   (ILLEGAL, CUT,      CUT,      CUT,      ILLEGAL,  CUT,      ILLEGAL),
    E.CLOSE_TIMED_OUT: (ILLEGAL, ILLEGAL,  ILLEGAL,  ILLEGAL,  CUT,      CUT,      ILLEGAL),
    E.SOCKET_GONE:     (ILLEGAL, GONE,     GONE,     GONE,     GONE,     GONE,     GONE),
}
# fmt: on
_NEXT = {(state, event): after for event, row in TABLE.items() for state, after in zip(STATES, row, strict=True)}


def next_state(state: State, event: ConnectionEvent) -> State:
    """Return the state that follows. Raises: IllegalTransition."""
    after = _NEXT[state, event]
    if after is None:
        raise IllegalTransition(f"{event.label} while {state.label}")
    return after
