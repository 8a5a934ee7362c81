"""`finals=accurate`: streams whose finished segments get a second pass, in one batch with others."""

from __future__ import annotations

import json
from collections.abc import Callable
from urllib.parse import urlencode

import numpy as np
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from server.models.loading import LoadedModel
from tests.support.servers.fakes import WAIT_S
from tests.support.servers.live_server import LiveServer, transcript
from tests.support.servers.shouting import ShoutingDecoder
from tests.support.servers.spelling import SpellingModel, silence, spell, spelling_decoder
from tests.support.servers.uploaded import encoded, said

Start = Callable[..., LiveServer]


def models() -> list[LoadedModel]:
    accurate = ShoutingDecoder()
    return [LoadedModel.of(SpellingModel(), spelling_decoder(), "en", ("en",), accurate=accurate)]


@pytest.fixture
def server(live_server: Start) -> LiveServer:
    return live_server(model=models())


def test_each_stream_has_the_finals_it_asks_for(server: LiveServer) -> None:
    asked: list[dict[str, str]] = [{}, {"finals": "accurate"}, {"finals": "fast"}]
    clients = [server.listen(**query) for query in asked]
    for client in clients:
        client.send(np.concatenate([spell("one"), silence(1.0)]))
    assert [transcript(client.finish()) for client in clients] == ["one", "ONE", "one"]


@pytest.mark.parametrize(("pause_s", "accurate"), [(0.56, 1), (0.88, 2)])
def test_a_pause_ends_their_segments_later(server: LiveServer, pause_s: float, accurate: int) -> None:
    audio = np.concatenate([spell("one"), silence(pause_s), spell("two"), silence(1.5)])
    found = []
    for finals in ("fast", "accurate"):
        client = server.listen(finals=finals)
        client.send(audio)
        found.append(sum(bool(transcript([frame])) for frame in client.finish()))
    assert found == [2, accurate]


def test_uploads_have_them_too(server: LiveServer) -> None:
    body = encoded(spell("one"), "wav")
    assert said(server.http.post("/v1/listen", params={"finals": "accurate"}, content=body).json()) == "ONE"
    assert said(server.http.post("/v1/listen", content=body).json()) == "one"


def test_a_form_of_openais_may_ask_for_them(server: LiveServer) -> None:
    def texts(**fields: str) -> list[str]:
        files = {"file": ("yes.wav", encoded(spell("yes"), "wav"))}
        answer = server.http.post("/v1/audio/transcriptions", files=files, data=fields)
        return [answer.json()["text"] if answer.status_code == 200 else answer.json()["error"]["message"]]

    assert texts(finals="accurate") == ["YES."]
    assert texts() == texts(finals="fast") == ["Yes."]
    assert texts(finals="best") == ["finals: 'best' is not one of fast, accurate"]


def test_a_client_of_vosks_asks_in_the_address(server: LiveServer) -> None:
    def said_by_vosk(**query: str) -> list[str]:
        with connect(f"ws://{server.host}/vosk?{urlencode(query)}", compression=None, open_timeout=WAIT_S) as socket:
            socket.send('{"config": {"sample_rate": 16000}}')
            answers = []
            for message in (spell("one").tobytes(), silence(1.0).tobytes(), '{"eof": 1}'):
                socket.send(message)
                answers.append(json.loads(socket.recv(timeout=WAIT_S)))
        return [answer["text"] for answer in answers if answer.get("text")]

    assert said_by_vosk(finals="accurate") == ["ONE"]
    assert said_by_vosk() == said_by_vosk(finals="fast") == ["one"]
    with pytest.raises(InvalidStatus) as refused:
        said_by_vosk(finals="best")
    assert b"finals: 'best' is not one of fast, accurate" in refused.value.response.body


def test_a_server_may_have_them_for_all_that_do_not_say(live_server: Start) -> None:
    server = live_server(model=models(), finals="accurate")
    queries: list[dict[str, str]] = [{}, {"finals": "fast"}, {"resumable": "true"}, {"stable_words": "true"}]
    clients = [server.listen(**query) for query in queries]
    for client in clients:
        client.send(np.concatenate([spell("one"), silence(1.0)]))
    assert [transcript(client.finish()) for client in clients] == ["ONE", "one", "one", "one"]


def test_other_finals_are_refused(server: LiveServer) -> None:
    with pytest.raises(InvalidStatus) as refused:
        server.listen(finals="best")
    assert refused.value.response.status_code == 400
    assert b"finals: 'best' is not one of fast, accurate" in refused.value.response.body


def test_a_model_without_them_says_so(live_server: Start) -> None:
    with pytest.raises(InvalidStatus) as refused:
        live_server().listen(finals="accurate")
    assert (
        b"finals: accurate is not available for model 'spelling': it needs beam search" in refused.value.response.body
    )
