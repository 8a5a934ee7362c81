"""The end of a connection: the state table, and random events on the real connection with a fake transport."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from server.errors import CLOSES, CloseReason, IllegalTransition
from server.protocols.adapter_connection import AdapterConnection
from server.protocols.vosk.adapter import VoskAdapter
from server.recognition.session_options import Limits
from server.streaming.closing import STATES, TABLE, ConnectionEvent, State, next_state
from server.streaming.flow_control import MAX_SESSION_S, WRITE_TIMEOUT_S, LiveLimits
from server.streaming.outbox import OUTBOX_FRAMES
from tests.support.servers.recognizers.spelling import silence, spell
from tests.support.streams.transport_bench import ConnectionBench

IDLE_S, STALL_S = 20.0, 30.0  # by the fake clock: the real timer never fires meanwhile
ENDED = {State.CLOSING, State.CUT, State.GONE}
MAX_BACKLOG_S = 3.0


# The state table


def test_every_state_has_an_entry_for_every_event() -> None:
    assert set(TABLE) == set(ConnectionEvent)
    assert all(len(row) == len(STATES) for row in TABLE.values())


def test_an_illegal_transition_raises() -> None:
    illegal = [
        (state, event) for event in TABLE for state, after in zip(STATES, TABLE[event], strict=True) if not after
    ]
    assert illegal
    for state, event in illegal:
        with pytest.raises(IllegalTransition, match=event.label):
            next_state(state, event)


def test_only_an_open_connection_reads_and_results_stop_with_the_close_frame() -> None:
    assert {state for state in State if not state.sends} == ENDED
    assert [state for state in State if state.reads] == [State.OPEN]


@pytest.mark.parametrize("event", ConnectionEvent)
def test_an_event_that_ends_the_results_has_a_reason_or_gets_one(event: ConnectionEvent) -> None:
    """`LAST_RESULT` takes the reason of the flush; every other event that stops the results has its own."""
    ends = any(
        state.sends and after is not None and not after.sends for state, after in zip(STATES, TABLE[event], strict=True)
    )
    assert not ends or event is ConnectionEvent.LAST_RESULT or event.reason is not None


# The real connection

STEPS: list[tuple[str, Any]] = [
    ("audio", 0.03),
    ("audio", 0.2),
    ("audio", 1.5),
    ("audio", 4.0),  # more than the backlog may be
    ("answer", 1),
    ("answer", 60),
    ("message", {"type": "Finalize"}),
    ("message", {"type": "KeepAlive"}),
    ("message", {"type": "CloseStream"}),
    ("message", {"reset": 1}),
    ("message", {"eof": 1}),
    ("message", "no JSON"),
    ("flood", 3),  # messages that are answered by a frame each, from a client that does not read
    ("flood", OUTBOX_FRAMES - 1),
    ("flood", OUTBOX_FRAMES),
    ("flood", OUTBOX_FRAMES + 1),
    ("message", b""),
    ("bad audio", None),
    ("time", IDLE_S),
    ("time", STALL_S),
    ("time", WRITE_TIMEOUT_S),
    ("time", MAX_SESSION_S),
    ("congested", True),
    ("congested", False),
    ("drain", None),
    ("leave", None),
    ("leave", None),
    ("break", None),
    ("on_gone", None),
    ("turn", 1),
    ("turn", 3),
]
RAW = {"encoding": "linear16", "sample_rate": "16000"}
CLIENTS: dict[str, dict[str, str]] = {
    "raw": RAW | {"interim_results": "true"},
    "resumable": RAW | {"step_results": "true", "resumable": "true"},
    "container": {"interim_results": "true"},  # decoded on the pool
    "vosk": RAW | {"interim_results": "true"},  # an adapter
}


class Walk:
    """One connection driven by random events, with the invariants."""

    def __init__(self, client: str, *, drained_first: bool) -> None:
        idle_s = 1e9 if client == "vosk" else IDLE_S
        limits = Limits(max_backlog_s=MAX_BACKLOG_S)
        live_limits = LiveLimits(idle_s, STALL_S, MAX_BACKLOG_S)
        adapter = VoskAdapter(16_000, rate=16_000) if client == "vosk" else None
        self.bench = ConnectionBench(limits, live_limits, adapter, **CLIENTS[client])
        self.stream: Any = self.bench.stream
        self.raw = client != "container"
        self.states = [self.stream._state]
        self.drained_first = drained_first

    def check(self) -> None:
        """Check the invariants after every step."""
        transport, state = self.bench.transport, self.stream._state
        self.states.append(state)
        assert transport.closes <= 1, "never two close frames"
        assert not transport.written_late, "never a frame after the close frame"
        assert self.bench.released <= 1
        assert (self.bench.released == 1) == (state in ENDED), "slots are released when results stop"
        assert (self.stream._reason is not None) == (state in ENDED)

    def do(self, what: str, value: Any) -> None:
        bench, stream = self.bench, self.stream
        match what:
            case "audio":
                pcm = spell("ab cd")[: int(value * 16_000)] if value < 1 else silence(value)
                bench.send(pcm.tobytes() if self.raw else wav(pcm.tobytes()))
            case "message":
                bench.send(value)
            case "flood":
                bench.transport.congested = True
                for _ in range(value):
                    bench.send({"type": "Nonsense"} if not isinstance(stream, AdapterConnection) else b"")
            case "answer":
                bench.answer(value)
            case "time":
                bench.clock.advance(value)
                stream._on_timer()
            case "bad audio" if not self.raw:
                bench.send(b"this is no container at all")
            case "congested":
                bench.transport.congested = value
                stream.on_writable()
            case "break":
                bench.recognition.fail(ArithmeticError("step"))
            case "drain" | "leave" | "on_gone" if hasattr(stream, what):
                getattr(stream, what)()

    async def play(self, script: list[tuple[str, Any]]) -> None:
        if self.drained_first:
            self.stream.drain()
        running = asyncio.ensure_future(self.stream.run(self.bench.recognition))
        await asyncio.sleep(0)
        for what, value in script:
            if self.stream._state is State.GONE and what == "time":
                continue  # its timer is cancelled
            self.do(what, value)
            self.check()
            for _ in range(value if what == "turn" else 0):
                await asyncio.sleep(0)
                self.check()
        self.stream.on_gone()
        await running
        self.check()


def wav(body: bytes) -> bytes:
    """Return a WAV stream of unknown length, or more of it: the bytes after the header are samples."""
    head = b"RIFF\xff\xff\xff\xffWAVEfmt \x10\0\0\0\1\0\1\0\x80>\0\0\0}\0\0\2\0\x10\0data\xff\xff\xff\xff"
    return head + body


@settings(max_examples=300)
@given(st.sampled_from(list(CLIENTS)), st.lists(st.sampled_from(STEPS), max_size=40), st.integers(0, 15))
def test_any_event_sequence_ends_once_with_one_reason(client: str, script: list[tuple[str, Any]], first: int) -> None:
    walk = Walk(client, drained_first=first == 15)
    with capture_logs() as logs:
        asyncio.run(walk.play(script))
    assert walk.stream._state is State.GONE
    order = [STATES.index(state) for state in walk.states]
    assert order == sorted(order), "no state is entered twice"
    (closed,) = [line for line in logs if line["event"] == "stream closed"]
    assert walk.stream._reason is not None
    assert closed["reason"] == walk.stream._reason.value
    counted = [s.value for m in walk.bench.metrics.sessions.collect() for s in m.samples if s.name.endswith("_total")]
    assert sum(counted) == 1
    if walk.bench.transport.closed is not None:
        code, reason = walk.bench.transport.closed
        close = CLOSES[walk.stream._reason]
        assert code == close.code
        assert reason == close.reason or walk.stream._reason is CloseReason.NOT_UNDERSTOOD
