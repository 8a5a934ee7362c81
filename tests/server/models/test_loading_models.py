"""Models come and go while streams of others run: on demand, by an operator's word, and what fails on the way."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from server.cli import app
from server.models.loading import LoadedModel
from server.models.registry import RegistryEntry
from server.operations import gc_schedule
from server.protocols.upload import Upload
from tests.support.clients.realtime_client import speak, until_transcript, update
from tests.support.servers.fakes import WAIT_S, FakeClock
from tests.support.servers.live_server import LiveServer, transcript
from tests.support.servers.recognizers.spelling import silence, spell, spelling_decoder
from tests.support.servers.two_models import Spanish, two_models
from tests.support.servers.uploaded import encoded, said

Start = Callable[..., LiveServer]
AUDIO = np.concatenate([spell("no one "), silence(1.0)])


class Loading:
    """Loads the model `es`; counts, and can be held up or made to fail."""

    def __init__(self) -> None:
        self.count = 0
        self.go = threading.Event()
        self.go.set()
        self.began = threading.Event()
        self.fails = False
        self.newest: weakref.ref[Any] | None = None

    def __call__(self) -> LoadedModel:
        self.count += 1
        self.began.set()
        assert self.go.wait(WAIT_S)
        if self.fails:
            raise OSError("the disk is gone")
        acoustic = Spanish()
        self.newest = weakref.ref(acoustic)
        return LoadedModel.of(acoustic, spelling_decoder(), "es", ("es",))


@pytest.fixture
def loading() -> Loading:
    return Loading()


def outlines(loading: Loading, *, on_demand: bool = True) -> tuple[RegistryEntry, ...]:
    _, spanish = two_models()
    return (RegistryEntry("es", ("es",), spanish.card, loading, on_demand),)


@pytest.fixture
def server(live_server: Start, loading: Loading) -> LiveServer:
    return live_server(model=two_models()[:1], outlines=outlines(loading), max_uploads=8)


def phases(server: LiveServer) -> dict[str, tuple[str, int]]:
    with server.http as http:
        return {state["name"]: (state["phase"], state["streams"]) for state in http.get("/admin/models").json()}


def post(server: LiveServer, path: str) -> tuple[int, Any]:
    with server.http as http:
        answer = http.post(f"/admin/models/{path}")
    return answer.status_code, answer.json() if answer.headers["content-type"] == "application/json" else answer.text


def wait_for(server: LiveServer, phase: str) -> None:
    ends = time.monotonic() + WAIT_S
    while phases(server)["es"][0] != phase:
        assert time.monotonic() < ends, phases(server)
        time.sleep(0.01)


def test_a_model_is_loaded_with_the_first_request_for_it_while_other_streams_go_on(
    server: LiveServer, loading: Loading
) -> None:
    with server.http as http:
        listed = {model["id"]: model["loaded"] for model in http.get("/v1/models").json()["data"]}
        assert listed == {"en": True, "es": False}
        assert [http.get(f"/v2/models/{name}/ready").status_code for name in ("en", "es")] == [200, 503]
        assert (http.get("/readyz").status_code, loading.count) == (200, 0)
    loading.go.clear()
    with server.listen() as english, ThreadPoolExecutor() as pool:
        spanish = [pool.submit(upload, server) for _ in range(3)]
        assert loading.began.wait(WAIT_S)
        assert phases(server)["es"] == ("loading", 0)
        english.send(AUDIO)
        assert transcript(english.finish()) == "no one"  # while the other one loads
        loading.go.set()
        assert [future.result(WAIT_S) for future in spanish] == ["mo ome"] * 3
    assert loading.count == 1, "all three waited for the same"
    with server.http as http:
        assert all(model["loaded"] for model in http.get("/v1/models").json()["data"])
    with server.listen(language="es") as client:
        client.send(AUDIO)
        assert transcript(client.finish()) == "mo ome"
    assert server.metric('tutti_batches_total{model="es"}') > 0


def upload(server: LiveServer) -> str:
    with server.http as http:
        return said(http.post("/v1/listen?language=es", content=encoded(AUDIO, "WAV")).json())


def test_a_client_that_leaves_does_not_end_the_loading(server: LiveServer, loading: Loading) -> None:
    loading.go.clear()
    with server.http as http, pytest.raises(Exception, match="timed out"):
        http.post("/v1/listen?language=es", content=encoded(AUDIO, "WAV"), timeout=0.3)
    loading.go.set()
    wait_for(server, "loaded")
    assert (upload(server), loading.count) == ("mo ome", 1)


def test_streams_of_a_model_that_leaves_end_by_themselves_and_new_ones_are_refused(
    server: LiveServer, loading: Loading
) -> None:
    assert post(server, "es/load") == (200, {"name": "es", "phase": "loaded", "streams": 0, "default": False})
    with server.listen() as english, server.listen(language="es") as spanish:
        spanish.send(spell("no "))
        assert post(server, "es/unload") == (202, {"name": "es", "phase": "unloading", "streams": 1, "default": False})
        assert post(server, "es/unload")[0] == 202
        with pytest.raises(InvalidStatus) as refused:
            server.listen(language="es")
        assert refused.value.response.status_code == 503
        assert b"is being unloaded" in refused.value.response.body
        assert "retry-after" in refused.value.response.headers
        with server.http as http:
            assert http.get("/readyz").status_code == 200
        spanish.send(np.concatenate([spell("one "), silence(1.0)]))
        assert transcript(spanish.finish()) == "mo ome"
        wait_for(server, "not loaded")
        english.send(AUDIO)
        assert transcript(english.finish()) == "no one"
    assert server.metric('tutti_model_session_capacity{model="es"}') == 0
    assert (post(server, "es/unload")[0], loading.count) == (200, 1)
    assert upload(server) == "mo ome"  # and it comes back with the next request
    assert loading.count == 2


def test_the_memory_of_a_model_that_has_left_is_free_again(
    server: LiveServer, loading: Loading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gc_schedule, "SETTLED_S", 0.1)
    gc_schedule.freeze_loaded_objects()
    assert upload(server) == "mo ome"
    gc_schedule.freeze_loaded_objects()  # as if it had been there from the start
    assert loading.newest is not None
    assert loading.newest() is not None
    post(server, "es/unload")
    ends = time.monotonic() + WAIT_S
    while loading.newest() is not None:
        assert time.monotonic() < ends, "something holds the model"
        time.sleep(0.05)


def test_an_idle_model_is_unloaded_and_loaded_again(live_server: Start, loading: Loading) -> None:
    server = live_server(model=two_models()[:1], outlines=outlines(loading), unload_idle_minutes=0.5 / 60)
    clock = server.replica.models._clock = FakeClock()
    with server.listen(language="es") as spanish:
        clock.advance(1.0)
        time.sleep(0.5)  # it looks every eighth of a second
        assert phases(server)["es"] == ("loaded", 1), "a stream is use, though nothing is said"
        spanish.send(AUDIO)
        assert transcript(spanish.finish()) == "mo ome"
    clock.advance(1.0)
    wait_for(server, "not loaded")
    assert (upload(server), loading.count) == ("mo ome", 2)
    with server.listen() as english:  # the default stays
        english.send(AUDIO)
        assert transcript(english.finish()) == "no one"


def test_a_recording_that_is_received_or_decoded_keeps_its_model(
    live_server: Start, loading: Loading, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = live_server(model=two_models()[:1], outlines=outlines(loading), unload_idle_minutes=0.2 / 60)
    opened = Upload.open

    async def open_late(self: Upload, *body: Any, **rules: Any) -> None:
        await asyncio.sleep(0.8)
        assert server.replica.models.unload("es").phase == "unloading"  # an operator's word
        await opened(self, *body, **rules)

    def sent_slowly() -> Iterator[bytes]:
        whole = encoded(AUDIO, "WAV")
        yield whole[:100]
        time.sleep(0.8)
        yield whole[100:]

    monkeypatch.setattr(Upload, "open", open_late)
    with server.http as http:
        assert said(http.post("/v1/listen?language=es", content=sent_slowly()).json()) == "mo ome"
    wait_for(server, "not loaded")
    assert loading.count == 1


def test_a_request_for_a_model_that_is_just_going_waits_and_loads_it_again(
    server: LiveServer, loading: Loading
) -> None:
    for count in range(1, 6):
        assert (upload(server), loading.count) == ("mo ome", count)
        assert post(server, "es/unload")[0] == 202


def test_a_model_that_an_operator_unloaded_stays_away_unless_it_is_for_demand(
    live_server: Start, loading: Loading
) -> None:
    server = live_server(model=two_models(), outlines=outlines(loading, on_demand=False))
    assert upload(server) == "mo ome"
    post(server, "es/unload")
    wait_for(server, "not loaded")
    with server.http as http:
        refused = http.post("/v1/listen?language=es", content=encoded(AUDIO, "WAV"))
    assert (refused.status_code, refused.json()["err_msg"]) == (503, "the model 'es' is not loaded")
    assert post(server, "es/load")[0] == 200
    assert (upload(server), loading.count) == ("mo ome", 1)


def test_a_model_that_cannot_be_loaded_is_refused_for_a_while_and_affects_no_other(
    server: LiveServer, loading: Loading
) -> None:
    loading.fails = True
    with server.listen() as english:
        with server.http as http:
            for _ in range(3):
                refused = http.post("/v1/listen?language=es", content=encoded(AUDIO, "WAV"))
                said_ = (refused.status_code, refused.json()["err_msg"])
                assert said_ == (503, "the model 'es' could not be loaded")
        assert loading.count == 1, "clients that return at once do not make it read the disk again"
        english.send(AUDIO)
        assert transcript(english.finish()) == "no one"
    assert post(server, "es/load") == (503, "the model 'es' could not be loaded\n")
    loading.fails = False
    assert post(server, "es/load")[0] == 200  # an operator need not wait
    assert (upload(server), loading.count) == ("mo ome", 3)


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("en/unload", 409, "'en' is the default model, which cannot be unloaded\n"),
        ("de/unload", 404, "no model is named 'de'; there is en, es\n"),
        ("de/load", 404, "no model is named 'de'; there is en, es\n"),
    ],
)
def test_what_an_operator_cannot_have_is_said(server: LiveServer, path: str, status: int, message: str) -> None:
    assert post(server, path) == (status, message)


def test_a_server_stops_while_a_model_is_loading(live_server: Start, loading: Loading) -> None:
    server = live_server(model=two_models()[:1], outlines=outlines(loading))
    loading.go.clear()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(post, server, "es/load")
        assert loading.began.wait(WAIT_S)
        server.server.should_exit = True
        loading.go.set()
        server.join()
        waiting.exception(WAIT_S)  # whatever the operator got
    assert loading.newest is not None, "the loading had begun"


def test_the_command_lists_loads_and_unloads(live_server: Start, loading: Loading) -> None:
    server = live_server(model=two_models()[:1], outlines=outlines(loading), admin_keys=["master"])
    url, key = f"http://{server.host}", {"TUTTI_ADMIN_KEY": "master"}

    @capture_logs()  # the server's own lines, which are in this process
    def run(*words: str, env: dict[str, str] | None = None) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["model", *words, "--url", url], env=env)
        return done.exit_code, done.output.rstrip()

    assert run("list")[0] == 1
    assert run("list", env=key) == (0, "en: loaded, the default, 0 streams\nes: not loaded, 0 streams")
    assert run("load", "es", env=key) == (0, "es: loaded, 0 streams")
    assert run("unload", "es", env=key) == (0, "es: unloading, 0 streams")
    code, said_ = run("unload", "en", env=key)
    assert (code, "'en' is the default model, which cannot be unloaded" in said_) == (1, True)


# A Realtime session's client names the language after it has connected


@contextmanager
def realtime(server: LiveServer, close_timeout_s: float = WAIT_S) -> Iterator[ClientConnection]:
    url = f"ws://{server.host}/v1/realtime?intent=transcription"
    with connect(url, compression=None, close_timeout=close_timeout_s) as socket:
        assert json.loads(socket.recv(timeout=WAIT_S))["type"] == "session.created"
        yield socket


def test_audio_that_comes_while_a_realtime_sessions_model_is_loaded_waits_for_it(
    server: LiveServer, loading: Loading
) -> None:
    loading.go.clear()
    with realtime(server) as socket:
        update(socket, transcription={"language": "es"}, turn_detection=None)
        speak(socket, "no one ")
        assert loading.began.wait(WAIT_S)
        with pytest.raises(TimeoutError):
            socket.recv(timeout=0.2)
        loading.go.set()
        events = until_transcript(socket)
    assert (events[0]["type"], events[-1]["transcript"]) == ("session.updated", "mo ome")


def test_a_realtime_session_whose_model_cannot_be_loaded_keeps_its_own(server: LiveServer, loading: Loading) -> None:
    loading.fails = True
    with realtime(server) as socket:
        update(socket, transcription={"language": "es"}, turn_detection=None)
        refused = json.loads(socket.recv(timeout=WAIT_S))["error"]
        assert refused["param"] == "session.audio.input.transcription.model"
        assert "the model 'es' could not be loaded" in refused["message"]
        update(socket, transcription={"language": "en"}, turn_detection=None)
        assert json.loads(socket.recv(timeout=WAIT_S))["session"]["audio"]["input"]["turn_detection"] is None
        assert server.metric('tutti_state_pool_slots_used{model="en"}') == 1


def test_a_realtime_client_that_leaves_while_its_model_is_loaded_leaves_no_stream(
    server: LiveServer, loading: Loading
) -> None:
    loading.go.clear()
    with realtime(server, close_timeout_s=0.1) as socket:
        update(socket, transcription={"language": "es"}, turn_detection=None)
        assert loading.began.wait(WAIT_S)
    loading.go.set()  # a client that is not read is not seen leaving before
    wait_for(server, "loaded")
    server.wait_idle()
    assert phases(server) == {"en": ("loaded", 0), "es": ("loaded", 0)}
