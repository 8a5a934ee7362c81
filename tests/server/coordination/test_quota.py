"""Quota of open streams per key: 429 above it, and release however a stream ends."""

from __future__ import annotations

import hashlib
import io
import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import soundfile
from websockets.exceptions import InvalidStatus

from server.coordination.limits import Quotas
from server.coordination.local import LocalCoordinator
from tests.support.servers.fakes import WAIT_S, FakeClock
from tests.support.servers.live_server import LiveServer, transcript
from tests.support.servers.recognizers.spelling import GatedSpellingModel, spell

Start = Callable[..., LiveServer]
KEYS = {"Authorization": "Token small"}


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    """Write a keys file with quotas: two streams for `small`, the server's default for `large`, one for `one`."""
    path = tmp_path / "keys"
    rows = [("small", "streams=2"), ("large", ""), ("one", "streams=1")]
    path.write_text("\n".join(f"{hashlib.sha256(key.encode()).hexdigest()} {rest}" for key, rest in rows))
    return path


def wave() -> bytes:
    file = io.BytesIO()
    soundfile.write(file, spell("a file"), 16_000, format="WAV")
    return file.getvalue()


def quotas_of(server: LiveServer) -> Quotas:
    coordinator = server.replica.guard.coordinator
    assert isinstance(coordinator, LocalCoordinator)
    return coordinator.quotas


def status(server: LiveServer, key: str, **query: object) -> int:
    """Return the status of a handshake; a stream that is admitted ends normally."""
    try:
        with server.listen({"Authorization": f"Token {key}"}, **query) as client:
            client.finish()
    except InvalidStatus as refused:
        return refused.response.status_code
    return 101


def wait_free(server: LiveServer) -> None:
    """Wait until no stream is counted; each request lets the server's event loop run."""
    server.wait_idle()
    for _ in range(1_000):
        if not quotas_of(server)._open:
            return
        server.http.get("/healthz")
    pytest.fail("a stream is still counted")


def test_a_key_beyond_its_quota_gets_429_with_retry_after_and_other_keys_are_served(
    live_server: Start, keys_file: Path
) -> None:
    server = live_server(api_keys_file=keys_file, max_streams_per_key=3)
    with server.listen(KEYS) as first, server.listen(KEYS) as second:
        with pytest.raises(InvalidStatus) as refused:
            server.listen(KEYS)
        response = refused.value.response
        assert response.status_code == 429
        assert int(response.headers["Retry-After"]) > 0
        assert json.loads(response.body)["err_code"] == "TOO_MANY_REQUESTS"
        assert response.headers["dg-error"] == "this key may have 2 streams open at a time; close one or retry later"
        assert server.http.post("/v1/listen", content=wave(), headers=KEYS).status_code == 429
        assert status(server, "large") == 101
        assert server.metric('tutti_handshakes_rejected_total{reason="quota"}') == 2
        first.send(spell("still here"))
        assert transcript(first.finish()) == "still here"
        second.finish()
    wait_free(server)
    assert status(server, "small") == 101


def test_the_default_quota_is_for_keys_without_their_own_and_not_for_open_servers(
    live_server: Start, keys_file: Path
) -> None:
    server = live_server(api_keys_file=keys_file, max_streams_per_key=1)
    with server.listen({"Authorization": "Token large"}):
        assert status(server, "large") == 429
    open_server = live_server(max_streams_per_key=1)
    with open_server.listen() as first, open_server.listen() as second:
        first.finish()
        second.finish()


def test_a_call_counts_once_whatever_its_channels(live_server: Start, keys_file: Path) -> None:
    server = live_server(api_keys_file=keys_file)
    stereo = {"channels": 2, "multichannel": "true"}
    assert status(server, "one", **stereo) == 101
    assert status(server, "one", channels=2) == 101
    with server.listen(KEYS, **stereo) as first, server.listen(KEYS, **stereo) as second:
        assert status(server, "small") == 429
        first.finish()
        second.finish()
    wait_free(server)


def test_a_stream_is_released_however_it_ends(live_server: Start, keys_file: Path) -> None:
    """Ended, lost, too large, idle, refused for its query or by a full server."""
    clock = FakeClock()
    server = live_server(api_keys_file=keys_file, idle_timeout_s=0.05, max_streams=2, clock=clock)
    with server.listen(KEYS) as ended:
        ended.finish()
    vanished = server.listen(KEYS)
    vanished.vanish()
    server.wait_idle()
    with server.listen(KEYS) as large:
        large.send(bytes(2**20 + 2))
        assert large.rest()[1] == 1009
    with server.listen(KEYS) as idle:
        idle.say("not a type")
        idle.receive()  # the answer: the stream has begun
        clock.advance(1.0)
        assert idle.rest()[1] == 1011
    assert status(server, "small", encoding="nonsense") == 400
    server.wait_idle()
    with server.listen({"Authorization": "Token large"}), server.listen({"Authorization": "Token large"}):
        assert status(server, "small") == 503
    wait_free(server)


def test_an_upload_is_released_whether_it_ends_fails_or_is_abandoned(live_server: Start, keys_file: Path) -> None:
    server = live_server(api_keys_file=keys_file)
    for content, expected in ((wave(), 200), (b"no audio", 400)):
        answer = server.http.post("/v1/listen", content=content, headers=KEYS)
        assert answer.status_code == expected
    with socket.create_connection(server.host.split(":"), timeout=WAIT_S) as leaver:
        head = "POST /v1/listen HTTP/1.1\r\nHost: x\r\nAuthorization: Token small\r\nContent-Length: 1000\r\n\r\n"
        leaver.sendall(head.encode() + bytes(10))
        quotas = quotas_of(server)
        answer = server.http.post("/v1/listen", content=wave(), headers=KEYS)
        assert answer.status_code == 200
        assert len(quotas._open) == 1, "the upload in progress is counted"
    wait_free(server)


def test_a_stream_is_released_when_recognition_fails(live_server: Start, keys_file: Path) -> None:
    model = GatedSpellingModel()
    server = live_server(model=model, api_keys_file=keys_file, stall_timeout_s=0.1)
    with server.listen(KEYS) as stalled:
        model.shut()
        stalled.send(spell("a"))
        model.wait_inside()
        assert stalled.rest()[1] == 1011
        model.open()
    wait_free(server)
