"""Handshakes and refusals of /v1/listen over real sockets, and tags of streams."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
import soundfile
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
