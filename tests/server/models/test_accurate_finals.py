"""`finals=accurate`: streams whose ended segments are read again, beside streams of the same batch that are not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from live_server import LiveServer, transcript
from shouting import ShoutingDecoder
from spelling import SpellingModel, silence, spell, spelling_decoder
from uploaded import encoded, said
from websockets.exceptions import InvalidStatus

from server.served_model import LoadedModel

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


def test_a_server_may_have_them_for_all_that_do_not_say(live_server: Start) -> None:
    server = live_server(model=models(), finals="accurate")
    queries: list[dict[str, str]] = [{}, {"finals": "fast"}, {"resumable": "true"}, {"stable_words": "true"}]
    clients = [server.listen(**query) for query in queries]
    for client in clients:
        client.send(np.concatenate([spell("one"), silence(1.0)]))
    assert [transcript(client.finish()) for client in clients] == ["ONE", "one", "one", "one"]


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ({"finals": "best"}, b"finals: 'best' is none of fast, accurate"),
        ({"finals": "accurate", "resumable": "true"}, b"finals: accurate finals do not go with resumable"),
        ({"finals": "accurate", "stable_words": "true"}, b"finals: accurate finals do not go with stable_words"),
    ],
)
def test_what_cannot_be_is_refused(server: LiveServer, query: dict[str, str], problem: bytes) -> None:
    with pytest.raises(InvalidStatus) as refused:
        server.listen(**query)
    assert refused.value.response.status_code == 400
    assert problem in refused.value.response.body


def test_a_model_without_them_says_so(live_server: Start) -> None:
    with pytest.raises(InvalidStatus) as refused:
        live_server().listen(finals="accurate")
    assert b"has no accurate ones: they need beam search here, and another model" in refused.value.response.body
