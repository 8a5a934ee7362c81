"""Web pages that may use the server: its own and those of allowed origins; requests without `Origin` always may."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from websockets.exceptions import InvalidStatus

from server.access.origins import allow_pages, check_origin, is_private_name, origin_of
from server.errors import NotAllowed, SettingsError
from server.settings import Settings
from tests.support.servers.live_server import LiveServer

Start = Callable[..., LiveServer]
LISTED = frozenset({"https://shop.example", "http://other.example:81"})


@pytest.mark.parametrize(
    ("origins", "host", "allowed", "comes_in"),
    [
        ([], "tutti.example", (), True),  # not a browser
        (["http://tutti.example"], "tutti.example", (), True),
        (["https://tutti.example"], "tutti.example", (), True),  # TLS is terminated by a proxy
        (["https://tutti.example"], "tutti.example:443", (), True),
        (["http://Tutti.example:8080"], "tutti.example:8080", (), True),
        (["http://[::1]:8080"], "[::1]:8080", (), True),
        (["http://tutti.example:8081"], "tutti.example:8080", (), False),
        (["http://tutti.example"], "tutti.example:8080", (), False),
        (["https://evil.example"], "tutti.example", (), False),
        (["https://tutti.example.evil.example"], "tutti.example", (), False),
        (["https://shop.example"], "tutti.example", LISTED, True),
        (["https://SHOP.example:443"], "tutti.example", LISTED, True),
        (["http://shop.example"], "tutti.example", LISTED, False),
        (["http://other.example:81"], "tutti.example", LISTED, True),
        (["http://other.example"], "tutti.example", LISTED, False),
        (["null"], "tutti.example", LISTED, False),
        (["null"], "", (), False),
        (["null"], "tutti.example", {"null"}, True),
        (["https://any.example"], "tutti.example", {"*"}, True),
        (["chrome-extension://abcdefghijklmnop"], "tutti.example", {"chrome-extension://abcdefghijklmnop"}, True),
        (["chrome-extension://tutti.example"], "tutti.example", (), False),
        (["tauri://localhost"], "localhost", (), False),
        (["file://"], "", (), False),
        (["file://"], "tutti.example", {"null"}, True),
        (["gibberish"], "gibberish", LISTED, False),
        (["https://tutti.example:port"], "tutti.example", LISTED, False),
        ([""], "", LISTED, False),
        (["https://shop.example", "https://evil.example"], "tutti.example", LISTED, False),
    ],
)
def test_pages_of_this_server_and_of_the_list_are_accepted(
    origins: list[str], host: str, allowed: frozenset[str], comes_in: bool
) -> None:
    if comes_in:
        check_origin(origins, host, frozenset(allowed), keyless=False)
        return
    with pytest.raises(NotAllowed):
        check_origin(origins, host, frozenset(allowed), keyless=False)


@pytest.mark.parametrize(
    ("host", "private"),
    [
        ("localhost:8080", True),
        ("LOCALHOST.", True),
        ("127.0.0.1", True),
        ("[::1]:8080", True),
        ("[::ffff:127.0.0.1]:80", True),
        ("192.168.0.7:8080", True),
        ("tutti", True),
        ("tutti.speech.svc", True),
        ("tutti.speech.svc.cluster.local:8080", True),
        ("box.local", True),
        ("", True),
        ("evil.example", False),
        ("localhost.evil.example:8080", False),
        ("127.0.0.1.evil.example", False),
        ("127.0.0.1.nip.io:8080", False),
        ("local.example.", False),
        ("[::1", False),
        ("evil.example@localhost", True),  # no browser sends it
    ],
)
def test_without_keys_a_page_at_a_name_that_a_stranger_may_own_is_refused(host: str, *, private: bool) -> None:
    """DNS rebinding: the page's name resolves to this server, so Origin and Host agree."""
    assert is_private_name(host) is private
    if not host.startswith("evil.example@") and host.lower().rstrip(".") and host != "[::1":
        origin = f"http://{host}"
        check_origin([origin], host, frozenset(), keyless=False)
        check_origin([origin], host, {origin_of(origin)}, keyless=True)
        with nullcontext() if private else pytest.raises(NotAllowed, match="add it to allowed_origins"):
            check_origin([origin], host, frozenset(), keyless=True)


@pytest.mark.parametrize("text", ["shop.example", "https://", "://a", "https://a/path", "https://u@a", "https://a:x"])
def test_a_list_with_an_invalid_origin_is_an_error(live_server: Start, text: str) -> None:
    with pytest.raises(ValueError):
        origin_of(text)
    with pytest.raises(SettingsError, match="allowed_origins"):
        LiveServer(allowed_origins=[text])


def status(server: LiveServer, origin: str, key: str = "plain") -> int:
    """Return the status of a handshake by a page of this origin."""
    try:
        with server.listen({"Origin": origin, "Authorization": f"Token {key}"}) as client:
            client.finish()
    except InvalidStatus as refused:
        return refused.response.status_code if refused.response.headers["dg-error"] else 0
    return 101


def test_handshakes_uploads_and_grants_check_the_origin(live_server: Start, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"{hashlib.sha256(b'narrow').hexdigest()} origins=https://narrow.example")
    server = live_server(allowed_origins=["https://shop.example/"], api_keys=["plain"], api_keys_file=path)
    here, shop, evil, narrow = f"http://{server.host}", *(f"https://{n}.example" for n in ("shop", "evil", "narrow"))
    assert [status(server, origin) for origin in (here, shop, evil)] == [101, 101, 403]
    assert [status(server, origin, "narrow") for origin in (here, shop, narrow)] == [101, 403, 101]
    assert status(server, evil, "wrong") == 401
    for endpoint in ("/v1/listen", "/v1/auth/grant"):
        headers = {"Origin": evil, "Authorization": "Token plain"}
        answer = server.http.post(endpoint, headers=headers)
        assert (answer.status_code, answer.json()["err_code"]) == (403, "INSUFFICIENT_PERMISSIONS")


def test_only_pages_of_the_list_get_cors_headers(live_server: Start) -> None:
    server = live_server(allowed_origins=["https://shop.example"])
    wish = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    for origin, leave in (("https://shop.example", True), ("https://evil.example", False)):
        answer = server.http.options("/v1/auth/grant", headers={"Origin": origin} | wish)
        assert (answer.headers.get("access-control-allow-origin") == origin) is leave
    answer = server.http.post("/v1/auth/grant", headers={"Origin": "https://shop.example"})
    assert answer.headers["access-control-allow-origin"] == "https://shop.example"
    assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize("listed", ["*", "https://app.example"])
def test_a_preflight_of_an_sdk_is_answered_only_for_allowed_pages(listed: str) -> None:
    """Browsers send a preflight request for the SDK's own headers."""
    app = FastAPI()
    allow_pages(app, Settings(allowed_origins=(listed,)))
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,x-stainless-os"}
    http = TestClient(app)
    answer = http.options("/v1/listen", headers={"Origin": "https://app.example", **asked})
    assert answer.status_code == 200
    assert "x-stainless-os" in answer.headers["access-control-allow-headers"]
    if listed != "*":
        assert http.options("/v1/listen", headers={"Origin": "https://other.example", **asked}).status_code == 400
