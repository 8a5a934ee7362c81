"""Grammars: a stream that names one is decoded by it, in one batch with streams that do not."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import httpx
import numpy as np
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from model.ctc.greedy import GreedyDecoder, GreedyState
from model.ctc.words import Word
from server.models.loading import LoadedModel
from server.resume.tickets import new_key
from tests.support.clients.resume_client import ResumingClient
from tests.support.servers.fakes import WAIT_S
from tests.support.servers.live_server import LiveServer, transcript
from tests.support.servers.spelling import CONFIG, SpellingModel, silence, spell, spelling_decoder
from tests.support.servers.uploaded import encoded, said

Start = Callable[..., LiveServer]


class Loud(GreedyDecoder):
    """Writes what it decodes in capitals, so that each word shows which decoder it is of."""

    def __init__(self) -> None:
        super().__init__(CONFIG.vocabulary, CONFIG.frame_s)

    @property
    def digest(self) -> str:
        return "loud"

    def words(self, state: GreedyState) -> tuple[Word, ...]:
        return tuple(replace(word, text=word.text.upper()) for word in super().words(state))

    def take(self, state: GreedyState, count: int | None = None) -> tuple[Word, ...]:
        return tuple(replace(word, text=word.text.upper()) for word in super().take(state, count))


def models() -> list[LoadedModel]:
    return [LoadedModel.of(SpellingModel(), spelling_decoder(), "en", ("en",), grammars={"loud": Loud()})]


@pytest.fixture
def server(live_server: Start) -> LiveServer:
    return live_server(model=models())


def test_streams_with_a_grammar_and_without_share_batches(server: LiveServer) -> None:
    texts = ["one two", "three", "four five six", "seven"]
    clients = [server.listen(**({"grammar": "loud"} if number % 2 else {})) for number in range(len(texts))]
    for client, text in zip(clients, texts, strict=True):
        client.send(np.concatenate([spell(text), silence(1.0)]))
    texts = [transcript(client.finish()) for client in clients]
    assert texts == ["one two", "THREE", "four five six", "SEVEN"]


def test_uploads_have_one_too(server: LiveServer) -> None:
    body = encoded(spell("one two"), "wav")
    assert said(server.http.post("/v1/listen", params={"grammar": "loud"}, content=body).json()) == "ONE TWO"
    assert said(server.http.post("/v1/listen", content=body).json()) == "one two"


def test_a_form_of_openais_may_name_one(server: LiveServer) -> None:
    def answer(**fields: str) -> httpx.Response:
        files = {"file": ("one.wav", encoded(spell("hello there"), "wav"))}
        return server.http.post("/v1/audio/transcriptions", files=files, data=fields)

    assert [answer(grammar="loud").json()["text"], answer().json()["text"]] == ["HELLO THERE.", "Hello, there."]
    assert answer(grammar="quiet").status_code == 400


def test_the_address_of_a_client_of_vosks_may_name_one(server: LiveServer) -> None:
    with connect(f"ws://{server.host}/vosk?grammar=loud", compression=None, open_timeout=WAIT_S) as socket:
        socket.send('{"config": {"sample_rate": 16000}}')
        socket.send(spell("one two").tobytes())
        socket.recv(timeout=WAIT_S)
        socket.send('{"eof": 1}')
        assert json.loads(socket.recv(timeout=WAIT_S))["text"] == "ONE TWO"


def test_another_one_is_refused_with_what_there_is(server: LiveServer, live_server: Start) -> None:
    with pytest.raises(InvalidStatus) as refused:
        server.listen(grammar="quiet")
    assert refused.value.response.status_code == 400
    assert b"grammar: the model 'en' does not have 'quiet'; there is loud" in refused.value.response.body
    assert (
        server.http.post("/v1/listen", params={"grammar": "x"}, content=encoded(spell("a"), "wav")).status_code == 400
    )
    with pytest.raises(InvalidStatus) as refused:
        live_server().listen(grammar="loud")
    assert b"it has none" in refused.value.response.body


def test_a_stream_keeps_its_grammar_on_another_server() -> None:
    audio = np.concatenate([part for text in ("ab", "cd", "ef") for part in (spell(text), silence(0.9))])[:, None]
    keys = (new_key(),)
    with LiveServer(model=models(), resume_keys=keys) as one, LiveServer(model=models(), resume_keys=keys) as other:
        moved = ResumingClient([one, other], audio, 16_000, grammar="loud").run([1.5])
    texts = [final["channel"]["alternatives"][0]["transcript"] for final in moved.finals]
    assert [text for text in texts if text] == ["AB", "CD", "EF"]
