"""Streams create no reference cycles, so full collections can wait until no stream is open."""

from __future__ import annotations

import gc
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.server import ServerProtocol
from websockets.sync.client import connect

from server.audio.decode_queue import DecodeQueue
from server.operations import gc_schedule
from server.operations.gc_schedule import AT_LATEST_S, SETTLED_S, GcSchedule
from server.operations.watchdog import PERIOD_S
from server.recognition.session import Session
from server.streaming.connection import Connection
from server.streaming.outbox import Writer
from server.streaming.websocket import StreamWebSocket
from tests.support.servers.fakes import WAIT_S
from tests.support.servers.live_server import LiveServer
from tests.support.servers.recognizers.spelling import spell

Start = Callable[..., LiveServer]
OF_A_STREAM = (Connection, DecodeQueue, StreamWebSocket, ServerProtocol, Session, Writer)


@pytest.fixture
def uncollected() -> Iterator[Callable[[], list[str]]]:
    """Disable collection; return the type names of a stream's objects that are still alive."""
    gc.collect()
    before = weakref.WeakSet(_of_streams())
    gc.disable()
    try:
        yield lambda: sorted(type(each).__name__ for each in _of_streams() if each not in before)
    finally:
        gc.enable()


def _of_streams() -> list[object]:
    return [each for each in gc.get_objects() if issubclass(type(each), OF_A_STREAM)]


def ends(server: LiveServer, **query: object) -> None:
    with server.listen(**query) as client:
        client.send(spell("hello"))
        client.finish()


def vanishes(server: LiveServer) -> None:
    client = server.listen()
    client.send(spell("hello"))
    client.socket.socket.close()


def refused(server: LiveServer) -> None:
    """For two channels where one slot is free, once its connection exists; for its query; for a full server."""
    with server.listen() as held:
        for query in ({"channels": 2, "multichannel": "true"}, {"encoding": "nonsense"}):
            with pytest.raises(InvalidStatus):
                server.listen(**query)
        with server.listen() as last:
            with pytest.raises(InvalidStatus):
                server.listen()
            last.finish()
        held.finish()


def calls_without_a_target(server: LiveServer) -> None:
    with connect(f"ws://{server.host}/v1/twilio", open_timeout=WAIT_S, proxy=None) as call:
        call.send('{"event":"start","streamSid":"MZ1","start":{"callSid":"CA1"}}')
        with pytest.raises(ConnectionClosed):
            call.recv(timeout=WAIT_S)


def uploads(server: LiveServer) -> None:
    answer = server.http.post("/v1/listen?encoding=linear16&sample_rate=16000", content=spell("hello").tobytes())
    assert "hello" in answer.text


@pytest.mark.parametrize(
    ("act", "settings"),
    [
        (ends, {}),
        (partial(ends, resumable="true"), {}),
        (partial(ends, encoding="mulaw", sample_rate=8_000), {}),
        (vanishes, {}),
        (refused, {"max_streams": 2}),
        (calls_without_a_target, {"twilio_forward_url": "ws://127.0.0.1:9/"}),
        (uploads, {}),
    ],
)
def test_a_request_leaves_no_cycles(
    live_server: Start, uncollected: Callable[[], list[str]], act: Callable[[LiveServer], None], settings: Any
) -> None:
    server = live_server(**settings)
    act(server)
    server.wait_idle()
    for _ in range(20):
        if not uncollected():
            return
        server.http.get("/healthz").raise_for_status()  # lets the event loop and the closing transport run
    assert not uncollected()


def test_full_collection_runs_after_the_last_stream_and_at_the_latest_after_900_s() -> None:
    collections: list[float] = []
    schedule = GcSchedule(0.0, lambda: collections.append(now))
    now = 0.0
    for now in range(600):  # idle from the start: nothing to collect
        schedule.look(now, 0)
    assert not collections
    for now in range(600, 700):
        schedule.look(now, 3)
    assert not collections
    for now in range(700, 800):
        schedule.look(now, 0)
    assert collections == [699 + SETTLED_S]
    for now in range(800, 3_000):
        schedule.look(now, 3)
    assert collections[1:] == [699 + SETTLED_S + AT_LATEST_S, 699 + SETTLED_S + 2 * AT_LATEST_S]


@pytest.mark.usefixtures("uncollected")
def test_server_collects_after_its_last_stream(live_server: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc_schedule, "SETTLED_S", 0.1)
    server = live_server()
    cycle = _Cycle()
    left = weakref.ref(cycle)
    del cycle
    with server.listen() as client:  # open for two checks of the watchdog, so that it sees the stream
        time.sleep(2 * PERIOD_S)
        assert left() is not None
        client.finish()
    server.wait_idle()  # not `uncollected()`: its list of all objects would keep the cycle alive during the collection
    ends = time.monotonic() + WAIT_S
    while left() is not None:
        assert time.monotonic() < ends
        time.sleep(PERIOD_S / 10)


def test_loaded_objects_are_frozen() -> None:
    code = (
        "import gc; from server.operations import gc_schedule as schedule; schedule.freeze_loaded_objects();"
        "assert gc.get_threshold() == (schedule.YOUNG, schedule.MIDDLE, schedule.NEVER);"
        "assert gc.get_freeze_count() > 1000"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=WAIT_S)


class _Cycle:
    """An object that only a garbage collection frees."""

    def __init__(self) -> None:
        self.itself = self
