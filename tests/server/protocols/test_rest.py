"""Rest of live streams, turns and uploads of a server: what is computed, and what is said."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.support.protocols.listen_query import RAW
from tests.support.servers.live_server import LiveServer, transcript
from tests.support.servers.recognizers.spelling import silence, voiced
from tests.support.servers.uploaded import encoded, said

RESTED = 'tutti_rested_steps_total{model="spelling"}'
RESTING = 'tutti_resting_channels{model="spelling"}'
AUDIO = np.concatenate([voiced("ab"), silence(4.0), voiced("cd"), silence(3.0)])


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with LiveServer(rest_s=0.8, max_openings_per_s="off") as server:
        yield server


@pytest.mark.parametrize(("asked", "rests"), [({}, True), ({"rest": "false"}, False), ({"rewind": "0"}, True)])
def test_a_stream_rests_unless_it_asks_not_to(server: LiveServer, asked: dict[str, str], rests: bool) -> None:
    before = server.metric(RESTED)
    with server.listen(**asked) as client:
        client.send(AUDIO)
        assert transcript(client.finish()) == "ab cd"
    assert (server.metric(RESTED) - before > 40) is rests
    assert server.metric(RESTING) == 0.0


@pytest.mark.parametrize(("rest", "rests"), [("", True), ("&rest=false", False)])
def test_an_upload_rests_unless_it_asks_not_to(server: LiveServer, rest: str, rests: bool) -> None:
    before = server.metric(RESTED)
    with server.http as client:
        answer = client.post(f"/v1/listen?endpointing=true{rest}", content=encoded(AUDIO, "wav"))
    assert said(answer.json()) == "ab cd"
    assert (server.metric(RESTED) - before > 40) is rests


def test_a_server_without_rest_refuses_to_let_a_stream_rest() -> None:
    with LiveServer() as server, server.http as client:
        answer = client.post(f"/v1/listen?{RAW}&rest=true", content=silence(1.0).tobytes())
    assert answer.status_code == 400
    assert answer.json()["err_msg"].startswith("rest: streams do not rest on this server")
