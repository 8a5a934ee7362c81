"""Several models in one replica: every protocol chooses by name and language, and refuses what is not served."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from model.ctc.tokens import Tokens
from model.facts import ModelFacts
from model.machine.device import CPU
from server.errors import SettingsError
from tests.support.clients.realtime_client import speak, until_transcript, update
from tests.support.needs import need_package
from tests.support.servers.fakes import WAIT_S
from tests.support.servers.live_server import LiveServer, transcript
from tests.support.servers.spelling import CONFIG, silence, spell
from tests.support.servers.two_models import two_models
from tests.support.servers.uploaded import encoded, said

Start = Callable[..., LiveServer]
AUDIO = np.concatenate([spell("no one "), silence(1.0)])
TEXTS = {"en": "no one", "es": "mo ome"}
REALTIME, VOSK, TWILIO = "/v1/realtime?intent=transcription&", "/vosk?", "/v1/twilio?reply=true&"


@pytest.fixture
def server(live_server: Start) -> LiveServer:
    return live_server(model=two_models())


def dial(server: LiveServer, path: str) -> ClientConnection:
    return connect(f"ws://{server.host}{path}", compression=None, open_timeout=WAIT_S, close_timeout=WAIT_S)


def refusal(server: LiveServer, path: str) -> tuple[int, Any]:
    """Status and body of a refused handshake."""
    with pytest.raises(InvalidStatus) as refused:
        dial(server, path)
    return refused.value.response.status_code, json.loads(refused.value.response.body)


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ({}, "en"),
        ({"model": "es"}, "es"),
        ({"model": "ES", "language": "es-419"}, "es"),
        ({"language": "es"}, "es"),
        ({"model": "nova-3", "language": "es-MX"}, "es"),
        ({"model": "nova-3", "language": "en-US"}, "en"),
        ({"model": "nova-3"}, "en"),
    ],
)
def test_a_live_stream_and_an_upload_have_the_model_that_they_ask_for(
    server: LiveServer, query: dict[str, str], name: str
) -> None:
    with server.listen(**query) as client:
        client.send(AUDIO)
        frames = client.finish()
    assert transcript(frames) == TEXTS[name]
    uuid = server.replica.models.known(name).card.uuid
    results = [frame for frame in frames if frame["type"] == "Results"]
    assert {(frame["metadata"]["model_info"]["name"], frame["metadata"]["model_uuid"]) for frame in results} == {
        (name, uuid)
    }
    assert (frames[-1]["models"], frames[-1]["model_info"][uuid]["name"]) == ([uuid], name)
    with server.http as http:
        answer = http.post("/v1/listen", params=query, content=encoded(AUDIO, "WAV")).json()
    assert (said(answer), answer["metadata"]["model_info"][uuid]["name"]) == (TEXTS[name], name)


def test_models_share_one_replica_and_each_has_its_own_engine_and_metrics(server: LiveServer) -> None:
    streams = [server.listen(model=name) for name in ("en", "es", "en")]
    assert server.replica.models.slots_used == 3
    assert server.metric('tutti_state_pool_slots_used{model="en"}') == 2
    for client, name in zip(streams, ("en", "es", "en"), strict=True):
        with client:
            client.send(AUDIO)
            assert transcript(client.finish()) == TEXTS[name]
    server.wait_idle()
    for name in ("en", "es"):
        assert server.metric(f'tutti_batch_rows_total{{model="{name}"}}') > 0
        assert server.metric(f'tutti_queue_wait_seconds_count{{model="{name}"}}') > 0
    names = {service.recognizer.engines.require_warm()._thread.name for service in server.replica.models}
    assert names == {"model en", "model es"}


# A language that is not served


def test_deepgrams_streams_and_uploads_are_refused_a_language_that_is_not_served(server: LiveServer) -> None:
    status, body = refusal(server, "/v1/listen?language=de")
    assert (status, body["err_code"]) == (400, "INVALID_QUERY_PARAMETER")
    assert body["err_msg"] == "language: 'de' is not served here; there is en (en), es (es)"
    _, body = refusal(server, "/v1/listen?language=en&model=es")
    assert body["err_msg"] == "language: the model 'es' has es, not 'en'"
    with server.http as http:
        answer = http.post("/v1/listen?language=de", content=encoded(AUDIO, "WAV"))
    assert (answer.status_code, answer.json()["err_code"]) == (400, "INVALID_QUERY_PARAMETER")


def transcription(server: LiveServer, **fields: str) -> httpx.Response:
    with server.http as http:
        return http.post("/v1/audio/transcriptions", files={"file": encoded(AUDIO, "WAV")}, data=fields)


def test_openais_uploads_have_the_language_that_they_ask_for_or_are_refused(server: LiveServer) -> None:
    verbose = {"response_format": "verbose_json", "model": "whisper-1"}
    for language, name, answered in (("es", "es", "spanish"), ("en", "en", "english"), ("", "en", "english")):
        answer = transcription(server, language=language, **verbose).json()
        assert (answer["text"].lower().rstrip("."), answer["language"]) == (TEXTS[name], answered)
    assert transcription(server, model="es").json()["text"].lower().rstrip(".") == TEXTS["es"]
    for stream in ("false", "true"):
        refused = transcription(server, language="de", stream=stream, model="whisper-1")
        error = refused.json()["error"]
        assert (refused.status_code, error["param"], error["type"]) == (400, "language", "invalid_request_error")
        assert "there is en (en), es (es)" in error["message"]


def updated(socket: ClientConnection, **transcription: str) -> Any:
    """The answer to an update of a Realtime session's transcription."""
    update(socket, transcription=transcription)
    return json.loads(socket.recv(timeout=WAIT_S))


def test_a_realtime_session_holds_the_language_that_it_tells(server: LiveServer) -> None:
    status, body = refusal(server, REALTIME + "language=de")
    assert (status, body["error"]["param"]) == (400, "language")
    with dial(server, REALTIME + "language=es") as socket:
        created = json.loads(socket.recv(timeout=WAIT_S))
        answered = created["session"]["audio"]["input"]["transcription"]
        assert (answered["model"], answered["language"]) == ("es", "es")
        wrong = updated(socket, language="de")
        assert (wrong["type"], wrong["error"]["param"]) == ("error", "session.audio.input.transcription.language")
        right = updated(socket, model="es", language="es-MX")["session"]["audio"]["input"]["transcription"]
        assert (right["model"], right["language"]) == ("es", "es-MX")


def spoken(socket: ClientConnection) -> str:
    """Speak, and return the transcript."""
    speak(socket, "no one ")
    return str(until_transcript(socket)[-1]["transcript"])


def test_a_realtime_session_may_change_its_language_before_any_audio(server: LiveServer) -> None:
    with dial(server, REALTIME) as socket:
        socket.recv(timeout=WAIT_S)
        update(socket, turn_detection=None)
        socket.recv(timeout=WAIT_S)
        for language in ("es", "en", "es-MX"):
            answered = updated(socket, model="gpt-4o-transcribe", language=language)["session"]["audio"]["input"]
            assert answered["transcription"] == {"model": "gpt-4o-transcribe", "language": language}
            assert answered["turn_detection"] is None, "what was set before stays"
        assert server.metric('tutti_state_pool_slots_used{model="en"}') == 0, "it gave its place back"
        assert spoken(socket) == TEXTS["es"]
        late = updated(socket, language="en")
        assert late["error"]["param"] == "session.audio.input.transcription.language"
        assert "cannot change from model 'es'" in late["error"]["message"]
        assert spoken(socket) == TEXTS["es"]


def test_vosks_and_twilios_handshakes_choose_or_are_refused(server: LiveServer) -> None:
    for path in (VOSK, TWILIO):
        status, body = refusal(server, path + "language=de")
        assert (status, body["err_code"]) == (400, "INVALID_QUERY_PARAMETER")
        assert body["err_msg"].startswith("language: 'de' is not served here")
    with dial(server, VOSK + "language=es&sample_rate=16000") as socket:
        socket.send(AUDIO.tobytes())
        socket.recv(timeout=WAIT_S)
        socket.send('{"eof":1}')
        assert json.loads(socket.recv(timeout=WAIT_S))["text"] == TEXTS["es"]
    with dial(server, TWILIO + "model=es") as socket:
        socket.send(
            json.dumps(
                {
                    "event": "start",
                    "streamSid": "s",
                    "start": {"mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 16_000}},
                }
            )
        )
        socket.send(json.dumps({"event": "media", "media": {"payload": base64.b64encode(bytes([255])).decode()}}))
        socket.send(json.dumps({"event": "stop"}))
        frames = [json.loads(socket.recv(timeout=WAIT_S)) for _ in range(3)]
        answered = [frame["result"] for frame in frames if frame["event"] == "transcript"]
        assert answered[0]["metadata"]["model_info"]["name"] == "es"


def test_one_model_refuses_another_language_too(live_server: Start) -> None:
    server = live_server()
    assert refusal(server, "/v1/listen?language=es")[1]["err_msg"].endswith("there is spelling (en)")
    with server.listen(language="en-GB") as client:
        assert client.socket.response is not None
        assert "x-ignored-params" not in client.socket.response.headers
        client.finish()


# Resuming, readiness, voice activity


def test_a_ticket_is_refused_by_another_model_and_taken_by_its_own(server: LiveServer) -> None:
    with server.listen(resumable="true", model="es") as client:
        client.send(AUDIO)
        ticket = client.until(lambda frame: frame["type"] == "Ticket")[-1]["ticket"]
        client.vanish()
    with server.listen(resumable="true", model="en") as client:
        client.say("Resume", ticket=ticket, finals=0)
        assert client.receive()["code"] == "TICKET_MODEL"
        client.finish()
    with server.listen(resumable="true", model="es") as client:
        client.say("Resume", ticket=ticket, finals=0)
        assert client.receive()["type"] == "Resumed"
        client.finish()


def test_ready_only_while_every_model_is(server: LiveServer) -> None:
    with server.http as http:
        assert http.get("/readyz").status_code == 200
        names = [model["name"] for model in http.get("/v1/status").json()["models"]]
        assert names == ["en", "es"]
        assert [http.get(f"/v2/models/{name}/ready").status_code for name in ("es", "fr")] == [200, 404]
        server.replica.models.known("es").service.recognizer.engines.stop(WAIT_S)
        assert http.get("/readyz").status_code == 503


class EightKilohertz:
    """A model of telephone audio, as far as building a replica looks."""

    config = type("Config", (), {"sample_rate": 8_000, "step_samples": 640, "flush_steps": 1, "name": "telephone"})()
    config.version, config.architecture, config.languages = "1", "ctc", ()
    facts = ModelFacts(config, "22telephone", "exact", CPU, Tokens.of(("", "a"), 0))


def test_voice_activity_is_refused_for_a_model_of_another_rate(live_server: Start) -> None:
    with pytest.raises(SettingsError, match=r"^vad: silero needs a model at 16000 Hz, and 'telephone' takes 8000 Hz"):
        live_server(model=EightKilohertz(), vad="silero", vad_model=type("Vad", (), {"step_samples": 512})())


def test_two_models_of_one_name_are_refused(live_server: Start) -> None:
    with pytest.raises(SettingsError, match="two models are named 'en'"):
        live_server(model=[two_models()[0]] * 2)


# Capacity


def test_a_full_replica_refuses_streams_of_every_model(live_server: Start) -> None:
    server = live_server(model=two_models(), max_streams=3)
    assert server.metric("tutti_sessions_max") == 3
    clients = [server.listen(model=name) for name in ("en", "es", "es")]
    for name in ("en", "es"):
        assert refusal(server, f"/v1/listen?model={name}")[0] == 503
    clients[0].finish()
    server.wait_until(lambda: server.replica.models.slots_used == 2)
    clients.append(server.listen(model="es"))
    for client in clients[1:]:
        client.finish()


# /v1/models


def test_the_list_of_models_is_that_of_both_kinds_of_client(server: LiveServer) -> None:
    with server.http as http:
        listed = http.get("/v1/models").json()
        assert [model["id"] for model in listed["data"]] == ["en", "es"] == [model["name"] for model in listed["stt"]]
        one = http.get("/v1/models/ES").json()
        assert (one["id"], one["object"], one["languages"], one["streaming"]) == ("es", "model", ["es"], True)
        assert http.get(f"/v1/models/{one['uuid']}").json() == one
        unknown = http.get("/v1/models/fr")
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")


def test_the_list_of_models_asks_for_a_key_where_streams_do(live_server: Start) -> None:
    server = live_server(api_keys=("secret",))
    with server.http as http:
        for path in ("/v1/models", "/v1/models/spelling"):
            assert http.get(path).status_code == 401
            assert http.get(path, headers={"Authorization": "Bearer secret"}).status_code == 200


def test_the_openai_sdk_reads_the_models(server: LiveServer) -> None:
    openai = need_package("openai")
    client = openai.OpenAI(api_key="any", base_url=f"http://{server.host}/v1", max_retries=0)
    assert [(model.id, model.object, model.owned_by) for model in client.models.list()] == [
        ("en", "model", "tutti"),
        ("es", "model", "tutti"),
    ]
    assert client.models.retrieve("es").id == "es"
    with pytest.raises(openai.NotFoundError, match="not served here"):
        client.models.retrieve("fr")


def test_the_deepgram_sdk_reads_the_models(server: LiveServer) -> None:
    need_package("deepgram")
    from deepgram import DeepgramClient
    from deepgram.environment import DeepgramClientEnvironment

    http, ws = f"http://{server.host}", f"ws://{server.host}"
    here = DeepgramClientEnvironment(base=http, production=ws, agent=ws, agent_rest=http)
    models = DeepgramClient(api_key="any", environment=here).manage.v1.models
    spanish = models.list().stt[1]
    assert (spanish.name, spanish.canonical_name, spanish.architecture) == ("es", "es", CONFIG.architecture)
    assert (spanish.languages, spanish.version, spanish.batch, spanish.streaming) == (["es"], "test", True, True)
    assert spanish.uuid_ == server.replica.models.known("es").card.uuid
    assert models.get(spanish.uuid_).name == "es"
