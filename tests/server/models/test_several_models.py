"""Models, grammars and second passes of one replica: every protocol chooses among them, and streams share batches."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from model.ctc.greedy import GreedyDecoder, GreedyState
from model.ctc.interface import FrameAudio, SecondPass
from model.ctc.tokens import Tokens
from model.ctc.words import Word
from model.facts import ModelFacts
from model.machine.device import CPU
from server.errors import SettingsError
from server.models.loading import LoadedModel
from server.recognition.steps import Auxiliary
from server.resume.tickets import new_key
from tests.support.clients.realtime_client import speak, until_transcript, update
from tests.support.clients.resume_client import ResumingClient
from tests.support.needs import need_package
from tests.support.protocols.wire_stream import WireStream
from tests.support.servers.fakes import WAIT_S
from tests.support.servers.live_server import LiveServer, transcript
from tests.support.servers.recognizers.shouting import ShoutingDecoder
from tests.support.servers.recognizers.spelling import CONFIG, silence, spell
from tests.support.servers.two_models import two_models
from tests.support.servers.uploaded import encoded, said

Start = Callable[..., LiveServer]
AUDIO = np.concatenate([spell("no one"), silence(1.0)])
TEXTS = {"en": "no one", "es": "mo ome"}


class Titled(GreedyDecoder):
    """Writes what it decodes in title case, so that each word shows which decoder it is of."""

    def __init__(self) -> None:
        super().__init__(CONFIG.vocabulary, CONFIG.frame_s)

    @property
    def digest(self) -> str:
        return "titled"

    def words(self, state: GreedyState) -> tuple[Word, ...]:
        return tuple(msgspec.structs.replace(word, text=word.text.title()) for word in super().words(state))

    def take(self, state: GreedyState, count: int | None = None) -> tuple[Word, ...]:
        return tuple(msgspec.structs.replace(word, text=word.text.title()) for word in super().take(state, count))


class Loud(Titled):
    """Has a second pass that writes all words in capitals."""

    reads_audio = False

    def second_pass(self, state: GreedyState, audio: FrameAudio | None) -> SecondPass:
        words = self.words(state)
        return lambda: tuple(msgspec.structs.replace(word, text=word.text.upper()) for word in words)


def models() -> list[LoadedModel]:
    english, spanish = two_models()
    passes = {("accurate", ""): ShoutingDecoder(), ("accurate", "titled"): Loud()}
    return [replace(english, grammars={"titled": Titled()}, passes=passes), spanish]


@pytest.fixture
def server(live_server: Start) -> LiveServer:
    return live_server(model=models())


def live(server: LiveServer, **query: str) -> str:
    with server.listen(**query) as client:
        client.send(AUDIO)
        return transcript(client.finish())


def uploaded(server: LiveServer, **query: str) -> str:
    return said(server.http.post("/v1/listen", params=query, content=encoded(AUDIO, "WAV")).json())


def openai(server: LiveServer, **fields: str) -> str:
    files = {"file": ("one.wav", encoded(AUDIO, "WAV"))}
    text: str = server.http.post("/v1/audio/transcriptions", files=files, data=fields).json()["text"]
    return text.removesuffix(".")


def wired(protocol: str) -> Callable[..., str]:
    def spoken(server: LiveServer, **query: str) -> str:
        with WireStream(server, protocol, **query) as stream:
            stream.say("no one")
            stream.finish()
        return " ".join(stream.texts()).removesuffix(".")

    return spoken


WAYS = {"live": live, "upload": uploaded, "openai upload": openai, "vosk": wired("vosk")}
BY_MODEL = WAYS | {name: wired(name) for name in ("openai", "twilio")}


def check(server: LiveServer, way: str, query: dict[str, str], text: str) -> None:
    assert BY_MODEL[way](server, **query) == (text[0].upper() + text[1:] if way == "openai upload" else text)


@pytest.mark.parametrize("way", WAYS)
def test_a_request_has_the_grammar_and_the_finals_that_it_asks_for(server: LiveServer, way: str) -> None:
    asked: list[tuple[dict[str, str], str]] = [
        ({}, "no ONE" if "upload" in way else "no one"),  # recordings have a second pass
        ({"grammar": "titled", "finals": "fast"}, "No One"),
        ({"finals": "accurate"}, "no ONE"),
        ({"finals": "fast"}, "no one"),
        ({"grammar": "titled", "finals": "accurate"}, "NO ONE"),
    ]
    for query, text in asked:
        check(server, way, query, text)


@pytest.mark.parametrize("way", BY_MODEL)
def test_a_request_has_the_model_that_it_asks_for(server: LiveServer, way: str) -> None:
    for query, name in (({"model": "ES"}, "es"), ({"language": "es-MX"}, "es"), ({"model": "en"}, "en")):
        check(server, way, query, "no ONE" if (name, "upload" in way) == ("en", True) else TEXTS[name])
        assert server.metric(f'tutti_batches_total{{model="{name}"}}') > 0


def test_results_name_the_model_that_made_them(server: LiveServer) -> None:
    for query, name in (({}, "en"), ({"model": "nova-3", "language": "es-MX"}, "es"), ({"model": "nova-3"}, "en")):
        with server.listen(**query) as client:
            client.send(AUDIO)
            frames = client.finish()
        uuid = server.replica.models.known(name).card.uuid
        named = [frame["metadata"] for frame in frames if frame["type"] == "Results"]
        assert {(each["model_info"]["name"], each["model_uuid"]) for each in named} == {(name, uuid)}
        assert (frames[-1]["models"], frames[-1]["model_info"][uuid]["name"]) == ([uuid], name)


def test_streams_of_each_kind_share_batches_and_models_have_engines_of_their_own(server: LiveServer) -> None:
    queries: list[dict[str, str]] = [{}, {"grammar": "titled"}, {"finals": "accurate"}, {"model": "es"}]
    streams = [server.listen(**query) for query in queries]
    assert server.replica.models.slots_used == 4
    assert server.metric('tutti_state_pool_slots_used{model="en"}') == 3
    for client in streams:
        client.send(AUDIO)
    assert [transcript(client.finish()) for client in streams] == ["no one", "No One", "no ONE", "mo ome"]
    server.wait_idle()
    assert server.metric('tutti_queue_wait_seconds_count{model="es"}') > 0
    names = {service.recognizer.engines.require_warm()._thread.name for service in server.replica.models}
    assert names == {"model en", "model es"}


@pytest.mark.parametrize(("pause_s", "accurate"), [(0.56, 1), (0.88, 2)])
def test_a_pause_ends_segments_with_accurate_finals_later(server: LiveServer, pause_s: float, accurate: int) -> None:
    audio = np.concatenate([spell("one"), silence(pause_s), spell("two"), silence(1.5)])
    segments = []
    for finals in ("fast", "accurate"):
        client = server.listen(finals=finals)
        client.send(audio)
        segments.append(sum(bool(transcript([frame])) for frame in client.finish()))
    assert segments == [2, accurate]


def test_a_server_may_have_accurate_finals_for_all_that_do_not_say(live_server: Start) -> None:
    server = live_server(model=models(), finals="accurate")
    queries: list[dict[str, str]] = [{"grammar": "titled"}, {"finals": "fast"}, {"resumable": "true"}]
    queries += [{}, {"stable_words": "true"}]
    assert [live(server, **query) for query in queries] == ["NO ONE", "no one", "no ONE", "no ONE", "no one"]


def test_a_grammar_and_a_model_that_are_not_there_are_refused_with_what_is(server: LiveServer) -> None:
    for query, text in (
        ({"grammar": "quiet"}, b"grammar: the model 'en' does not have 'quiet'; there is titled"),
        ({"language": "en", "model": "es"}, b"language: the model 'es' has es, not 'en'"),
    ):
        with pytest.raises(InvalidStatus) as refused:
            server.listen(**query)
        assert (refused.value.response.status_code, text in refused.value.response.body) == (400, True)


def test_a_realtime_session_may_change_its_language_before_any_audio(server: LiveServer) -> None:
    url = f"ws://{server.host}/v1/realtime?intent=transcription"

    def updated(**transcription: str) -> Any:
        update(socket, transcription=transcription)
        return json.loads(socket.recv(timeout=WAIT_S))

    def spoken() -> str:
        speak(socket, "no one ")
        return str(until_transcript(socket)[-1]["transcript"])

    with connect(url, compression=None, open_timeout=WAIT_S, close_timeout=WAIT_S) as socket:
        socket.recv(timeout=WAIT_S)
        update(socket, turn_detection=None)
        socket.recv(timeout=WAIT_S)
        for language in ("es", "en", "es-MX"):
            answered = updated(model="gpt-4o-transcribe", language=language)["session"]["audio"]["input"]
            assert answered["transcription"] == {"model": "gpt-4o-transcribe", "language": language}
            assert answered["turn_detection"] is None, "what was set before stays"
        assert server.metric('tutti_state_pool_slots_used{model="en"}') == 0, "it gave its place back"
        assert spoken() == TEXTS["es"]
        late = updated(language="en")
        assert late["error"]["param"] == "session.audio.input.transcription.language"
        assert "cannot change from model 'es'" in late["error"]["message"]
        assert spoken() == TEXTS["es"]


# Resuming, readiness, voice activity, capacity


def test_a_ticket_is_refused_by_another_model_and_taken_by_its_own(server: LiveServer) -> None:
    with server.listen(resumable="true", model="es") as client:
        client.send(AUDIO)
        ticket = client.until(lambda frame: frame["type"] == "Ticket")[-1]["ticket"]
        client.vanish()
    for model, key, answer in (("en", "code", "TICKET_MODEL"), ("es", "type", "Resumed")):
        with server.listen(resumable="true", model=model) as client:
            client.say("Resume", ticket=ticket, finals=0)
            assert client.receive()[key] == answer
            client.finish()


def test_a_stream_keeps_its_grammar_on_another_server() -> None:
    audio = np.concatenate([part for text in ("ab", "cd", "ef") for part in (spell(text), silence(0.9))])[:, None]
    keys = (new_key(),)
    with LiveServer(model=models(), resume_keys=keys) as one, LiveServer(model=models(), resume_keys=keys) as other:
        moved = ResumingClient([one, other], audio, 16_000, grammar="titled").run([1.5])
    texts = [final["channel"]["alternatives"][0]["transcript"] for final in moved.finals]
    assert [text for text in texts if text] == ["Ab", "Cd", "Ef"]


def test_ready_only_while_every_model_is(server: LiveServer) -> None:
    with server.http as http:
        assert http.get("/readyz").status_code == 200
        assert [model["name"] for model in http.get("/v1/status").json()["models"]] == ["en", "es"]
        assert [http.get(f"/v2/models/{name}/ready").status_code for name in ("es", "fr")] == [200, 404]
        server.replica.models.known("es").service.recognizer.engines.stop(WAIT_S)
        assert http.get("/readyz").status_code == 503


class EightKilohertz:
    """A model of telephone audio, as far as building a replica looks."""

    config = type("Config", (), {"sample_rate": 8_000, "step_samples": 640, "flush_steps": 1, "name": "telephone"})()
    config.version, config.architecture, config.languages = "1", "ctc", ()
    facts = ModelFacts(config, "22telephone", "exact", CPU, Tokens.of(("", "a"), 0))


def test_a_model_of_another_rate_than_vad_and_two_of_one_name_are_refused(live_server: Start) -> None:
    with pytest.raises(SettingsError, match=r"^vad: silero needs a model at 16000 Hz, and 'telephone' takes 8000 Hz"):
        live_server(
            model=EightKilohertz(), vad="silero", auxiliary={Auxiliary.VAD: type("Vad", (), {"step_samples": 512})()}
        )
    with pytest.raises(SettingsError, match="two models are named 'en'"):
        live_server(model=[two_models()[0]] * 2)


def test_a_full_replica_refuses_streams_of_every_model(live_server: Start) -> None:
    server = live_server(model=two_models(), max_streams=3)
    assert server.metric("tutti_sessions_max") == 3
    clients = [server.listen(model=name) for name in ("en", "es", "es")]
    for name in ("en", "es"):
        with pytest.raises(InvalidStatus, match="503"):
            server.listen(model=name)
    clients[0].finish()
    server.wait_until(lambda: server.replica.models.slots_used == 2)
    with pytest.raises(InvalidStatus, match="503"):
        server.listen(channels=2, multichannel="true")
    for client in (*clients[1:], server.listen(model="es")):
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


def test_the_openai_and_deepgram_sdks_read_the_models(server: LiveServer) -> None:
    need_package("deepgram")
    sdk = need_package("openai")
    client = sdk.OpenAI(api_key="any", base_url=f"http://{server.host}/v1", max_retries=0)
    assert [(model.id, model.object, model.owned_by) for model in client.models.list()] == [
        ("en", "model", "tutti"),
        ("es", "model", "tutti"),
    ]
    with pytest.raises(sdk.NotFoundError, match="not served here"):
        client.models.retrieve("fr")

    from deepgram import DeepgramClient
    from deepgram.environment import DeepgramClientEnvironment

    http, ws = f"http://{server.host}", f"ws://{server.host}"
    here = DeepgramClientEnvironment(base=http, production=ws, agent=ws, agent_rest=http)
    listed = DeepgramClient(api_key="any", environment=here).manage.v1.models
    spanish = listed.list().stt[1]
    assert (spanish.name, spanish.canonical_name, spanish.architecture) == ("es", "es", CONFIG.architecture)
    assert (spanish.languages, spanish.version, spanish.batch, spanish.streaming) == (["es"], "test", True, True)
    assert listed.get(spanish.uuid_).name == "es"
