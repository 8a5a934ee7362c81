"""API keys: how clients send them, which are accepted, and that they are never logged or returned."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
from websockets.sync.client import connect

from server.access.keys import ANYBODY, Caller, Credentials, Key, KeyRing
from server.errors import NotAuthorized, SettingsError
from tests.support.servers.live_server import LiveServer
from tests.support.servers.recognizers.spelling import spell

Start = Callable[..., LiveServer]
KEY = "s3cret-k3y"


@pytest.mark.parametrize(
    ("authorization", "subprotocols", "read"),
    [
        (f"Token {KEY}", (), (KEY, None, False)),
        (f"token {KEY}", (), (KEY, None, False)),
        (f"bearer {KEY}", (), (KEY, None, True)),
        (f"Bearer  {KEY} ", (), (KEY, None, True)),
        (None, ("token", KEY), (KEY, "token", False)),
        (None, ("bearer", KEY), (KEY, "bearer", True)),
        (None, ("Bearer", KEY), (KEY, "Bearer", True)),
        (None, ("token", KEY, "x-deepgram-session-id", "1-2"), (KEY, "token", False)),
        (None, ("x-deepgram-session-id", "1-2", "token", KEY), (KEY, "token", False)),
        ("Token other", ("bearer", KEY), ("other", "bearer", False)),
        (None, ("token",), (None, "token", False)),
        (None, ("chat",), (None, None, False)),
        (f"Basic {KEY}", (), (None, None, False)),
        ("Token", (), (None, None, False)),
        (None, (), (None, None, False)),
    ],
)
def test_every_form_that_clients_send_is_read(
    authorization: str | None, subprotocols: tuple[str, ...], read: tuple[str | None, str | None, bool]
) -> None:
    assert Credentials.read(authorization, subprotocols) == Credentials(*read)


def test_credentials_do_not_show_the_key() -> None:
    assert KEY not in repr(Credentials(KEY, "token"))


def test_a_key_shows_neither_itself_nor_its_digest() -> None:
    key = Key.of(KEY)
    assert key.digest.hex() not in repr(key) + key.id
    assert repr(key.digest) not in repr(key)
    assert key.id == Key.of(KEY).id != Key.of("other").id


def test_a_ring_accepts_its_own_keys_and_an_empty_one_every_request(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# of the team\n{hashlib.sha256(b'first').hexdigest()}  # first\n\n{'A' * 64}\n")
    ring = KeyRing.load(["plain"], file)
    for key in ("first", "plain"):
        ring.check(Credentials(key, None))
    for wrong in (Credentials("second", None), Credentials(None, None), Credentials("", None)):
        with pytest.raises(NotAuthorized):
            ring.check(wrong)
    assert KeyRing.load([], None).check(Credentials(None, None)) is ANYBODY
    assert ring.check(Credentials("first", None)) == Caller(Key.of("first"))


@pytest.mark.parametrize("content", ["not a digest", "# only a comment"])
def test_a_file_without_keys_is_an_error_and_does_not_open_the_server(tmp_path: Path, content: str) -> None:
    file = tmp_path / "keys"
    file.write_text(content)
    with pytest.raises(SettingsError, match="keys"):
        KeyRing.load([], file)
    with pytest.raises(SettingsError):
        KeyRing.load([], tmp_path / "absent")


def test_a_key_in_the_subprotocols_is_accepted_and_never_echoed(live_server: Start, capsys, caplog) -> None:
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
