"""Keys: which forms are read, who is let in, and that a key is never told to anybody."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from live_server import LiveServer, transcript
from spelling import spell
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from server.auth import Credentials, KeyRing
from server.errors import NotAuthorised, SettingsError

Start = Callable[..., LiveServer]
KEY = "s3cret-k3y"


@pytest.mark.parametrize(
    ("authorization", "subprotocols", "key", "echo"),
    [
        (f"Token {KEY}", (), KEY, None),
        (f"token {KEY}", (), KEY, None),
        (f"bearer {KEY}", (), KEY, None),
        (f"Bearer  {KEY} ", (), KEY, None),
        (None, ("token", KEY), KEY, "token"),
        (None, ("bearer", KEY), KEY, "bearer"),
        (None, ("token", KEY, "x-deepgram-session-id", "1-2"), KEY, "token"),
        (None, ("x-deepgram-session-id", "1-2", "token", KEY), KEY, "token"),
        ("Token other", ("token", KEY), "other", "token"),
        (None, ("token",), None, "token"),
        (None, ("chat",), None, None),
        (f"Basic {KEY}", (), None, None),
        ("Token", (), None, None),
        (None, (), None, None),
    ],
)
def test_every_form_that_clients_send_is_read(
    authorization: str | None, subprotocols: tuple[str, ...], key: str | None, echo: str | None
) -> None:
    assert Credentials.read(authorization, subprotocols) == Credentials(key, echo)


def test_credentials_do_not_show_the_key() -> None:
    assert KEY not in repr(Credentials(KEY, "token"))


def test_a_ring_lets_in_its_own_keys_and_an_empty_one_everybody(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# of the team\n{hashlib.sha256(b'first').hexdigest()}  # first\n\n{'A' * 64}\n")
    ring = KeyRing.load(["plain"], file)
    for key in ("first", "plain"):
        ring.check(Credentials(key, None))
    for wrong in (Credentials("second", None), Credentials(None, None), Credentials("", None)):
        with pytest.raises(NotAuthorised):
            ring.check(wrong)
    KeyRing.load([], None).check(Credentials(None, None))


@pytest.mark.parametrize("content", ["not a digest", "# only a comment"])
def test_a_file_that_holds_no_keys_is_an_error_and_not_an_open_door(tmp_path: Path, content: str) -> None:
    file = tmp_path / "keys"
    file.write_text(content)
    with pytest.raises(SettingsError, match="keys"):
        KeyRing.load([], file)
    with pytest.raises(SettingsError):
        KeyRing.load([], tmp_path / "absent")


def test_without_a_key_the_handshake_and_the_upload_are_refused(live_server: Start) -> None:
    server = live_server(api_keys=[KEY])
    for headers in (None, {"Authorization": "Token wrong"}):
        with pytest.raises(InvalidStatus) as refused:
            server.listen(headers)
        response = refused.value.response
        assert response.status_code == 401
        body = json.loads(response.body)
        assert body == {
            "err_code": "INVALID_AUTH",
            "err_msg": "Invalid credentials.",
            "request_id": response.headers["dg-request-id"],
        }
        assert server.http.post("/v1/listen", content=b"x", headers=headers or {}).status_code == 401
    assert server.metric('tutti_handshakes_rejected_total{reason="auth"}') == 4


def test_a_browser_is_let_in_by_subprotocol_and_sees_no_key_come_back(live_server: Start, capsys, caplog) -> None:
    server = live_server(api_keys=[KEY])
    with connect(server.url(), subprotocols=["token", KEY], compression=None) as socket:
        assert socket.subprotocol == "token"
        assert socket.response is not None
        assert KEY not in str(socket.response.headers)
        socket.send(spell("hi").tobytes())
        socket.send('{"type":"CloseStream"}')
        assert "hi" in str(socket.recv())
    server.wait_idle()
    assert KEY not in server.http.get("/metrics").text
    printed = capsys.readouterr()
    assert KEY not in printed.out + printed.err + caplog.text


def test_a_header_lets_in_too(live_server: Start) -> None:
    with live_server(api_keys=[KEY]).listen({"Authorization": f"bearer {KEY}"}) as client:
        client.send(spell("hi"))
        assert transcript(client.finish()) == "hi"
