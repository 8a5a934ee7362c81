"""`callback`: results of recordings and finals of streams, posted to a receiver, also after a killed server."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from server.callbacks import callbacks as service
from server.callbacks import delivery
from server.callbacks.folder import CallbackEntry, CallbackFolder
from server.protocols.deepgram import callbacks as protocol
from tests.support.servers.fakes import WAIT_S
from tests.support.servers.live_server import LiveServer
from tests.support.servers.receiver import Answer, Received, receiver
from tests.support.servers.recognizers.spelling import silence, spell
from tests.support.servers.server_process import ServerProcess
from tests.support.servers.uploaded import encoded, said

Start = Callable[..., LiveServer]
HELLO = encoded(spell("hello"), "WAV")


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    """Settings of a server that posts to this machine."""
    return {"callback_hosts": ("127.0.0.0/8",), "callback_folder": tmp_path / "callbacks"}


def waiting(settings: dict[str, Any]) -> list[str]:
    """Names of the files in the queue."""
    return sorted(path.name for path in settings["callback_folder"].iterdir())


def until_empty(server: LiveServer) -> None:
    """Wait until nothing is in the queue, nor counted in it."""
    end_s = time.monotonic() + WAIT_S
    while server.metric("tutti_callbacks_waiting"):
        assert time.monotonic() < end_s
        time.sleep(0.02)


def test_a_recording_is_answered_at_once_and_its_result_is_posted(live_server: Start, settings: dict[str, Any]) -> None:
    server = live_server(**settings, api_keys=("k3y",))
    headers = {"Authorization": "Token k3y"}
    with receiver() as running:
        query = {"callback": running.url, "callback_method": "PUT", "utterances": "true", "extra": ["call:7:a", "b:"]}
        answer = server.http.post("/v1/listen", params=query, content=HELLO, headers=headers)
        assert (answer.status_code, answer.json()) == (200, {"request_id": answer.headers["dg-request-id"]})
        received = running.next()
    assert received.method == "PUT"
    assert (said(received.json), received.json["results"]["utterances"][0]["transcript"]) == ("hello", "hello")
    assert received.json["metadata"]["extra"] == {"call": "7:a", "b": ""}
    assert received.json["metadata"]["request_id"] == answer.json()["request_id"] == received.headers["webhook-id"]
    assert len(received.headers["dg-token"]) == 16, "the id of the key, not the key"
    until_empty(server)
    assert server.metric('tutti_callbacks_total{outcome="delivered"}') == 1
    assert waiting(settings) == []
    same = server.http.post("/v1/listen?utterances=true", content=HELLO, headers=headers).json()
    assert same["results"]["channels"] == received.json["results"]["channels"]


def test_delivered_recordings_make_room_for_others(
    live_server: Start, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those whose query has only the callback."""
    monkeypatch.setattr(service, "MAX_OF_CALLER", 1)
    server = live_server(**settings)
    with receiver() as running:
        for _ in range(3):
            assert server.http.post("/v1/listen", params={"callback": running.url}, content=HELLO).status_code == 200
            running.next()
            until_empty(server)


def test_a_recording_that_cannot_be_decoded_is_reported_to_the_callback(
    live_server: Start, settings: dict[str, Any]
) -> None:
    server = live_server(**settings)
    with receiver() as running:
        answer = server.http.post("/v1/listen", params={"callback": running.url}, content=b"RIFF")
        received = running.next()
    assert answer.status_code == 200
    assert (received.json["err_code"], received.json["request_id"]) == ("INVALID_AUDIO", answer.json()["request_id"])


def test_a_recording_waits_while_the_server_is_full(
    live_server: Start, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The quota of its key counts when it is recognized, too."""
    monkeypatch.setattr(protocol, "PAUSES_S", (0.05, 0.05))
    server = live_server(**settings, api_keys=("k3y",), max_streams_per_key=1)
    headers = {"Authorization": "Token k3y"}
    with receiver() as running:
        server.http.post("/v1/listen", params={"callback": running.url}, content=HELLO, headers=headers)
        running.next()
        client = server.listen(headers=headers)
        with client:
            caller = server.replica.guard.keys._keys[0]
            entry = CallbackEntry(  # accepted before: a new request would be refused
                "later", "later", running.url, "POST", caller.id, "127.0.0.1", "now", recording=True
            )
            loop = server.server.loop
            add = server.replica.callbacks.add_recording(entry, HELLO)  # type: ignore[union-attr]
            asyncio.run_coroutine_threadsafe(add, loop).result(WAIT_S)
            time.sleep(0.3)
            assert running.empty
            client.finish()
        assert said(running.next().json) == "hello"


def test_finals_of_a_stream_are_posted_in_order_and_sent_to_the_client(
    live_server: Start, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "PAUSES_S", (0.05, 0.05))
    tries: list[str] = []

    def first_fails(received: Received) -> Answer:
        tries.append(received.headers["webhook-id"])
        return (500 if len(tries) == 1 else 200), {}

    server = live_server(**settings)
    with receiver(first_fails) as running:
        with server.listen(extra="call:7", callback=running.url, interim_results="true") as client:
            client.send(np.concatenate([spell("one"), silence(3.0), spell("two"), silence(3.0)]))
            frames = client.finish()
        sent = [frame for frame in frames if frame.get("is_final") or frame["type"] == "Metadata"]
        assert sent[-1]["extra"] == {"call": "7"}
        assert len(sent) > 2
        posted = [running.next() for _ in range(len(sent) + 1)]
        assert [received.json for received in posted[1:]] == sent
        assert posted[0].body == posted[1].body, "tried again before those after it"
        assert tries == [tries[0], *sorted(set(tries))]
    until_empty(server)


REFUSED = [
    ({"callback": "http://elsewhere.example/"}, "callback: the host elsewhere.example is not one of"),
    ({"callback": "http://10.0.0.1/"}, "callback: 10.0.0.1 is not a public address"),
    ({"callback": "x"}, "callback: must be a URL that begins with http:// or https://"),
    ({"callback": ""}, "callback: empty value"),
    ({"callback": ["http://127.0.0.1/", "http://127.0.0.2/"]}, "callback: given 2 times"),
    ({"callback_method": "put"}, "callback_method: needs callback"),
    ({"callback": "http://127.0.0.1/", "callback_method": "get"}, "callback_method: 'get' is not valid"),
    ({"callback": "http://127.0.0.1/", "ner": "true"}, "ner: not supported"),
]


@pytest.mark.parametrize(("query", "why"), REFUSED)
def test_bad_callbacks_are_refused_by_name(
    live_server: Start, settings: dict[str, Any], query: dict[str, Any], why: str
) -> None:
    server = live_server(**settings)
    answer = server.http.post("/v1/listen", params=query, content=HELLO)
    assert (answer.status_code, answer.json()["err_msg"][: len(why)]) == (400, why)
    assert waiting(settings) == []


@pytest.mark.parametrize("limit", ["MAX_RECORDINGS", "MAX_OF_CALLER"])
def test_a_full_queue_refuses_recordings(
    live_server: Start, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(service, limit, 0)
    answer = live_server(**settings).http.post("/v1/listen", params={"callback": "http://127.0.0.1/"}, content=HELLO)
    assert (answer.status_code, answer.json()["err_msg"]) == (
        503,
        "0 recordings wait for their callbacks; send it again later",
    )


def test_a_receiver_that_is_slower_than_a_stream_loses_finals_beyond_the_limit(
    live_server: Start, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MAX_FINALS", 1)
    server, ended = live_server(**settings), threading.Event()

    def slow(_: Received) -> Answer:
        ended.wait(WAIT_S)
        return 200, {}

    with receiver(slow) as running:
        with server.listen(callback=running.url) as client:
            client.send(np.concatenate([spell("one"), silence(3.0), spell("two"), silence(3.0)]))
            client.finish()
        ended.set()
        until_empty(server)
        assert server.metric('tutti_callbacks_total{outcome="failed"}') > 0


@pytest.mark.parametrize("killed", ["while it recognizes", "while the receiver is down"])
def test_a_killed_server_loses_no_accepted_recording(settings: dict[str, Any], killed: str) -> None:
    """`kill -9` between the answer and the delivery; the next server recognizes or delivers it."""
    given = {**settings, "callback_folder": str(settings["callback_folder"])}
    long = encoded(np.concatenate([spell("hello"), silence(200.0)]), "FLAC")
    with receiver() as running:
        port = running.port
        if killed == "while it recognizes":
            with ServerProcess(**given) as server:
                query = {"callback": running.url}
                accepted = server.http.post("/v1/listen", params=query, content=long).json()
                server.stop(9)
            assert [name.rpartition(".")[2] for name in waiting(settings)] == ["audio", "json"]
        else:
            with ServerProcess(**given) as server:
                query = {"callback": f"http://127.0.0.1:{_free_port()}/down"}
                accepted = server.http.post("/v1/listen", params=query, content=HELLO).json()
                server.until(lambda: any(name.endswith(".body") for name in waiting(settings)))
                server.stop(9)
            entry = settings["callback_folder"] / f"{accepted['request_id']}.json"
            entry.write_text(entry.read_text().replace(query["callback"], f"http://127.0.0.1:{port}/up"))
        assert running.empty
        with ServerProcess(**given) as server:
            received = running.next(timeout_s=4 * WAIT_S)
            assert (said(received.json), received.json["metadata"]["request_id"]) == ("hello", accepted["request_id"])
            server.until(lambda: not waiting(settings))
            assert server.metric('tutti_callbacks_total{outcome="delivered"}') == 1


def _free_port() -> int:
    with receiver() as running:
        return running.port


def test_a_key_that_is_revoked_meanwhile_gets_no_result(settings: dict[str, Any], live_server: Start) -> None:
    folder = CallbackFolder(settings["callback_folder"])
    with receiver() as running:
        entry = CallbackEntry("x", "x", running.url, "POST", "gone", query=(("model", "x"),), recording=True)
        folder.add(entry, "audio", HELLO)
        folder.close()
        live_server(**settings, api_keys=("k3y",))
        assert running.next().json == {"err_code": "INVALID_AUTH", "err_msg": "Invalid credentials.", "request_id": "x"}
