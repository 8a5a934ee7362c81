"""Streams create no reference cycles, so full collections can wait until no stream is open."""

from __future__ import annotations

import gc
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator

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
from tests.support.servers.live_server import LiveServer, transcript
from tests.support.servers.spelling import spell

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


def wait_until_gone(server: LiveServer, left: Callable[[], list[str]]) -> None:
    server.wait_idle()
    for _ in range(20):
        if not left():
            return
        server.http.get("/healthz").raise_for_status()  # lets the event loop and the closing transport run
    assert not left()


@pytest.mark.parametrize("query", [{}, {"resumable": "true"}, {"encoding": "mulaw", "sample_rate": 8_000}])
def test_ended_stream_leaves_no_cycles(
    live_server: Start, uncollected: Callable[[], list[str]], query: dict[str, object]
) -> None:
    server = live_server()
    with server.listen(**query) as client:
        if "encoding" not in query:
            client.send(spell("hello"))
            assert transcript(client.finish()) == "hello"
        else:
            client.finish()
    wait_until_gone(server, uncollected)


def test_vanished_client_leaves_no_cycles(live_server: Start, uncollected: Callable[[], list[str]]) -> None:
    server = live_server()
    client = server.listen()
    client.send(spell("hello"))
    client.socket.socket.close()
    wait_until_gone(server, uncollected)


def test_refusal_leaves_no_cycles(live_server: Start, uncollected: Callable[[], list[str]]) -> None:
    server = live_server(max_streams=1)
    with server.listen() as held:
        for query in ("encoding=linear16&sample_rate=16000", "encoding=nonsense"):
            with pytest.raises(InvalidStatus):
                connect(f"ws://{server.host}/v1/listen?{query}", open_timeout=WAIT_S, proxy=None)
        held.finish()
    wait_until_gone(server, uncollected)


def test_refusal_for_lack_of_slots_leaves_no_cycles(live_server: Start, uncollected: Callable[[], list[str]]) -> None:
    """Its connection exists before the recognizer refuses it: one slot is free, but two channels need two."""
    server = live_server(max_streams=2)
    with server.listen() as held:
        with pytest.raises(InvalidStatus):
            server.listen(channels=2, multichannel="true")
        held.finish()
    wait_until_gone(server, uncollected)


def test_call_without_a_forwarding_target_leaves_no_cycles(
    live_server: Start, uncollected: Callable[[], list[str]]
) -> None:
    server = live_server(twilio_forward_url="ws://127.0.0.1:9/")
    with connect(f"ws://{server.host}/v1/twilio", open_timeout=WAIT_S, proxy=None) as call:
        call.send('{"event":"start","streamSid":"MZ1","start":{"callSid":"CA1"}}')
        with pytest.raises(ConnectionClosed):
            call.recv(timeout=WAIT_S)
    wait_until_gone(server, uncollected)


def test_upload_leaves_no_cycles(live_server: Start, uncollected: Callable[[], list[str]]) -> None:
    server = live_server()
    answer = server.http.post("/v1/listen?encoding=linear16&sample_rate=16000", content=spell("hello").tobytes())
    assert "hello" in answer.text
    wait_until_gone(server, uncollected)


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
