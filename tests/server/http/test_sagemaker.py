"""SageMaker's contract of a container, with paths, queries and frames as its clients send them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import pytest
from pydantic import ValidationError
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from server.settings import Settings
from tests.support.servers.fakes import WAIT_S
from tests.support.servers.live_server import LiveServer
from tests.support.servers.recognizers.spelling import spell
from tests.support.servers.uploaded import encoded, said

Start = Callable[..., LiveServer]
ATTRIBUTES = "X-Amzn-SageMaker-Custom-Attributes"
# As the two SageMaker services of pipecat-ai 1.14 write them.
LISTEN = {
    "interim_results": "true", "punctuate": "false", "profanity_filter": "false", "model": "nova-3", "language": "en",
    "encoding": "linear16", "channels": "1", "multichannel": "false", "sample_rate": "16000", "mip_opt_out": "true",
}  # fmt: skip
FLUX = {"model": "flux-general-en", "sample_rate": "16000", "encoding": "linear16"}


def frames_of(server: LiveServer, path: str, query: dict[str, str], *said: str) -> list[dict[str, Any]]:
    """Stream as SageMaker's router does: no key, audio in binary frames, the messages `said` in text frames."""
    with connect(f"ws://{server.host}/{path}?{urlencode(query)}", compression=None, open_timeout=WAIT_S) as socket:
        socket.send(spell("hello").tobytes())
        for text in said:
            socket.send(text)
        assert socket.ping().wait(WAIT_S), "SageMaker closes a stream without pongs"
        return [json.loads(frame) for frame in socket]


@pytest.mark.parametrize("path", ["v1/listen", "invocations-bidirectional-stream"])
def test_a_stream_of_pipecats_service_is_transcribed(live_server: Start, path: str) -> None:
    server = live_server(sagemaker=True)
    frames = frames_of(server, path, LISTEN, '{"type":"KeepAlive"}', '{"type":"Finalize"}', '{"type":"CloseStream"}')
    finals = [frame["channel"]["alternatives"][0]["transcript"] for frame in frames if frame.get("is_final")]
    assert "hello" in finals
    assert frames[-1]["type"] == "Metadata"


def test_a_stream_of_pipecats_flux_service_has_turns(live_server: Start) -> None:
    frames = frames_of(live_server(sagemaker=True), "v2/listen", FLUX, '{"type":"CloseStream"}')
    assert frames[0]["type"] == "Connected"
    assert frames[-1]["event"] == "EndOfTurn"


def test_recordings_have_their_path_and_query_in_the_custom_attributes(live_server: Start) -> None:
    server = live_server(sagemaker=True)
    wav = encoded(spell("hello"), "WAV")
    for path in ("v1/listen", "/v1/listen"):
        headers = {ATTRIBUTES: f"{path}?utterances=true&tag=x", "Content-Type": "audio/wav"}
        answer = server.http.post("/invocations", content=wav, headers=headers)
        assert (answer.status_code, said(answer.json())) == (200, "hello")
        assert answer.json()["results"]["utterances"]
    form = server.http.post(
        "/invocations", files={"file": ("x.wav", wav)}, headers={ATTRIBUTES: "v1/audio/transcriptions"}
    )
    assert form.json()["text"].startswith("Hello")
    for attributes in ("", "v1/speak?model=x", "admin/drain", "v1/listen/../../admin/drain"):
        refused = server.http.post("/invocations", content=wav, headers={ATTRIBUTES: attributes})
        why = "custom attributes: must begin with v1/listen or v1/audio/transcriptions, then ?parameters"
        assert (refused.status_code, refused.json()["err_msg"]) == (400, why)
    wrong = server.http.post("/invocations", content=wav, headers={ATTRIBUTES: "v1/listen?diarize=true"})
    assert wrong.json()["err_msg"].startswith("diarize: not supported by this server")


def test_ping_says_whether_new_streams_are_accepted(live_server: Start) -> None:
    server = live_server(sagemaker=True)
    assert server.http.get("/ping").status_code == 200
    server.replica.sessions.draining = True
    assert server.http.get("/ping").status_code == 503


def test_its_paths_are_unknown_unless_it_is_set(live_server: Start) -> None:
    server = live_server()
    assert server.http.get("/ping").status_code == 404
    assert server.http.post("/invocations", content=b"x", headers={ATTRIBUTES: "v1/listen"}).status_code == 404
    with pytest.raises(InvalidStatus, match="404"):
        connect(f"ws://{server.host}/invocations-bidirectional-stream")


def test_it_is_refused_together_with_keys() -> None:
    with pytest.raises(ValidationError, match="cannot be combined with API keys"):
        Settings(sagemaker=True, api_keys=("k3y",))
