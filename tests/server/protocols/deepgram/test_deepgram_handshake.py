"""Handshakes and refusals of /v1/listen over real sockets, and tags of streams."""

from __future__ import annotations

import io
import json
from collections.abc import Callable

import pytest
import soundfile
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.support.servers.fakes import WAIT_S
from tests.support.servers.live_server import LiveServer, transcript
from tests.support.servers.spelling import spell

Start = Callable[..., LiveServer]


def test_compression_is_offered_by_clients_and_refused(live_server: Start) -> None:
    with connect(live_server().url(), compression="deflate", open_timeout=WAIT_S) as socket:
        assert socket.request is not None
        assert "permessage-deflate" in socket.request.headers["Sec-WebSocket-Extensions"]
        assert socket.response is not None
        assert "Sec-WebSocket-Extensions" not in socket.response.headers
        socket.send(spell("plain").tobytes())
        socket.send('{"type":"CloseStream"}')
        assert '"transcript":"plain"' in str(socket.recv(timeout=WAIT_S))


def test_unsupported_features_are_refused_unless_the_server_is_lenient(live_server: Start) -> None:
    asked = {"diarize": "true", "filler_words": "true"}
    with live_server(lenient_features=True).listen(**asked) as client:
        assert client.socket.response is not None
        assert client.socket.response.headers["x-ignored-params"] == "diarize,filler_words"
        client.finish()
    server = live_server()
    with pytest.raises(InvalidStatus) as refused:
        server.listen(**asked)
    assert refused.value.response.status_code == 400
    assert refused.value.response.headers["dg-error"].startswith("diarize: ")
    assert server.http.post("/v1/listen?redact=pii", content=b"RIFF").status_code == 400
    with server.listen(filler_words="true") as client:
        assert client.socket.response is not None
        assert client.socket.response.headers["x-ignored-params"] == "filler_words"
        client.finish()


def test_a_refusal_has_its_request_id_and_reason_in_headers_and_body(live_server: Start) -> None:
    server = live_server(api_keys=["k"], max_streams=1)
    key = {"Authorization": "Token k"}
    with server.listen(key):
        cases = [
            ({}, {}, 401, "INVALID_AUTH"),
            (key, {}, 503, "SERVICE_UNAVAILABLE"),
        ]
        for headers, query, status, code in cases:
            with pytest.raises(InvalidStatus) as refused:
                server.listen(headers, **query)
            response = refused.value.response
            body = refused.value.response.body.decode()
            assert response.status_code == status
            assert f'"err_code":"{code}"' in body
            assert response.headers["dg-error"] in body
            assert response.headers["dg-request-id"] in body
            assert response.headers["Content-Type"] == "application/json"
            assert ("Retry-After" in response.headers) == (status == 503)
    server.wait_idle()


def test_a_tag_appears_only_in_the_log(live_server: Start, capsys: pytest.CaptureFixture[str]) -> None:
    server = live_server()
    with server.listen(tag="night\nshift") as client:
        client.send(spell("hi"))
        frames = client.finish()
    server.wait_idle()
    assert transcript(frames) == "hi"
    assert "night" not in str(frames)
    (opened,) = [line for line in capsys.readouterr().out.splitlines() if "stream opened" in line]
    assert "night?shift" in opened
    assert "night" not in server.http.get("/metrics").text


@pytest.mark.parametrize("kind", ["audio/wav", "audio/x-anything; rate=1", "application/octet-stream", None])
def test_the_format_of_an_upload_is_detected_from_its_bytes_for_any_content_type(
    live_server: Start, kind: str | None
) -> None:
    file = io.BytesIO()
    soundfile.write(file, spell("hi"), 16_000, format="WAV")
    headers = {} if kind is None else {"Content-Type": kind}
    answer = live_server().http.post("/v1/listen", content=file.getvalue(), headers=headers)
    assert answer.status_code == 200
    assert answer.json()["results"]["channels"][0]["alternatives"][0]["transcript"] == "hi"


@pytest.mark.parametrize(
    "path",
    ["/v2/listen/", "/", "/v1/listen/", "/v1/speak", "/v1/realtime/x", "/healthz", "/%00%0a"],
)
def test_a_socket_at_an_unknown_path_gets_404_with_the_valid_paths(live_server: Start, path: str) -> None:
    server = live_server(api_keys=["k"])
    with pytest.raises(InvalidStatus) as refused:
        connect(f"ws://{server.host}{path}", compression=None, open_timeout=WAIT_S)
    response = refused.value.response
    assert response.status_code == 404
    body = json.loads(response.body)
    assert body["err_code"] == "NOT_FOUND"
    assert "/v1/listen" in body["err_msg"]
    assert response.headers["dg-error"] == body["err_msg"].encode("ascii", "replace").decode()
    assert response.headers["dg-request-id"] == body["request_id"]
    assert server.http.get("/nowhere").status_code == 404


@pytest.mark.parametrize("model", ["flux-general-en", "Flux-general-multi"])
def test_flux_models_are_refused_live_and_uploaded(live_server: Start, model: str) -> None:
    server = live_server()
    with pytest.raises(InvalidStatus) as refused:
        server.listen(model=model)
    assert refused.value.response.status_code == 400
    assert refused.value.response.headers["dg-error"].startswith(f"model: '{model}' is a model of /v2/listen")
    answer = server.http.post(f"/v1/listen?model={model}", content=b"RIFF")
    assert (answer.status_code, answer.json()["err_code"]) == (400, "V2_MODEL_ON_V1_LISTEN_ENDPOINT")
