"""Key terms and beam search end to end: a real socket, the real decoder, a model that confuses one letter."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from model.ctc.beam import BeamDecoder
from tests.support.servers.live_server import LiveServer, transcript
from tests.support.servers.recognizers.mishearing import AUDIO, MishearingModel
from tests.support.servers.recognizers.spelling import CONFIG, silence, spell
from tutti_asr_client.live import connect
from tutti_asr_client.messages import ConfigureFailure, ConfigureSuccess, Results

Start = Callable[..., LiveServer]


@pytest.fixture(scope="module")
def beam() -> BeamDecoder:
    """Return a narrow beam search without a language model."""
    decoder = BeamDecoder(CONFIG.vocabulary, CONFIG.frame_s, beams=4)
    decoder.warm_up()
    return decoder


@pytest.fixture
def server(live_server: Start, beam: BeamDecoder) -> LiveServer:
    return live_server(model=MishearingModel(), decoder=beam)


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ({}, "the qite flew"),
        ({"keyterm": "kite"}, "the kite flew"),
        ({"keyterm": "kite flew"}, "the kite flew"),
        ({"keyterm": "something else"}, "the qite flew"),
        ({"keywords": "kite:2"}, "the kite flew"),
        ({"keyterm": "kite", "smart_format": "true"}, "The kite flew."),
    ],
)
def test_a_live_stream_recognizes_its_key_terms(server: LiveServer, query: dict[str, str], text: str) -> None:
    with server.listen(**query) as client:
        assert client.socket.response is not None
        assert "x-ignored-params" not in client.socket.response.headers
        client.send(AUDIO)
        assert transcript(client.finish()) == text


def test_the_python_client_changes_its_key_terms(server: LiveServer) -> None:
    async def talk() -> list[Any]:
        async with connect(f"ws://{server.host}", interim_results=False) as client:
            messages = []
            for keyterms in (["kite"], [], ["x"] * 1_000):
                await client.configure(keyterms)
                messages.append(await anext(client))
                await client.send(AUDIO)
                await client.finalize()
                while not (isinstance(message := await anext(client), Results) and message.from_finalize):
                    messages.append(message)
                messages.append(message)
            await client.close_stream()
            async for _ in client:
                pass
            return messages

    messages = asyncio.run(talk())
    answers = [m for m in messages if not isinstance(m, Results)]
    assert answers[:2] == [ConfigureSuccess(("kite",)), ConfigureSuccess()]
    assert isinstance(answers[2], ConfigureFailure)
    texts = [m.text for m in messages if isinstance(m, Results) and m.text]
    assert texts == ["the kite flew", "the qite flew", "the qite flew"]


def test_stable_words_of_beam_search_do_not_change(server: LiveServer) -> None:
    with server.listen(interim_results="true", stable_words="true", keyterm="kite") as client:
        client.send(np.concatenate([spell("one two three the qite flew over the hill "), silence(1.0)]))
        frames = client.finish()
    stable: list[str] = []
    results = [f for f in frames if f["type"] == "Results"]
    for found in results:
        words = [w["word"] for w in found["channel"]["alternatives"][0]["words"]]
        assert words[: len(stable)] == stable
        stable = [] if found["is_final"] else words[: found["tutti"]["stable_words"]]
    assert transcript(frames) == "one two three the kite flew over the hill"
    assert sum(not f["is_final"] for f in results) > 5
