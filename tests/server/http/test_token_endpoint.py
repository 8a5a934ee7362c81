"""Short-lived tokens: the grant endpoint, and the requests that tokens authorize."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path

import jwt
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from server.access.keys import Credentials, Key, KeyRing, read_secrets
from server.access.tokens import LEEWAY_S, MIN_SECRET_BYTES, Tokens
from server.errors import NotAuthorized, SettingsError
from tests.support.servers.live_server import LiveServer, transcript
from tests.support.servers.recognizers.spelling import spell

Start = Callable[..., LiveServer]
KEY, SECRET = "s3cret-k3y", "0123456789abcdef" * 2
HEADERS = {"Authorization": f"Token {KEY}"}


def granted(server: LiveServer, **asked: object) -> str:
    answer = server.http.post("/v1/auth/grant", headers=HEADERS, json=asked or None)
    assert answer.status_code == 200
    return answer.json()["access_token"]


def verified(tokens: Tokens, token: str) -> str | None:
    """Return the id of the token's key, None if the token is refused."""
    try:
        return tokens.verify(token)
    except NotAuthorized:
        return None


def test_a_key_is_exchanged_for_a_token_of_the_requested_lifetime(live_server: Start) -> None:
    server = live_server(api_keys=[KEY])
    for asked, ttl_s in ((None, 30), ({}, 30), ({"ttl_seconds": 1}, 1), ({"ttl_seconds": 3600}, 3600)):
        answer = server.http.post("/v1/auth/grant", headers=HEADERS, json=asked)
        assert (answer.status_code, answer.json()["expires_in"]) == (200, ttl_s)
        assert answer.headers["cache-control"] == "no-store"
        claims = jwt.decode(answer.json()["access_token"], options={"verify_signature": False})
        assert claims["exp"] - claims["iat"] == ttl_s
        assert claims["aud"] == "tutti"
        assert hashlib.sha256(KEY.encode()).hexdigest() not in str(claims)
    with server.listen({"Authorization": f"Bearer {granted(server)}"}) as client:
        client.send(spell("hi"))
        assert transcript(client.finish()) == "hi"


def test_a_token_is_accepted_as_bearer_in_header_and_subprotocol_only(live_server: Start) -> None:
    server = live_server(api_keys=[KEY])
    token = granted(server)
    with connect(server.url(), subprotocols=["bearer", token], compression=None) as socket:
        assert socket.subprotocol == "bearer"
        assert token not in str(socket.response)
    upload = server.http.post("/v1/listen", headers={"Authorization": f"bearer {token}"}, content=b"x")
    assert upload.status_code == 400, "authorized, but not audio"
    with pytest.raises(InvalidStatus) as refused:
        server.listen({"Authorization": f"Token {token}"})
    assert refused.value.response.status_code == 401


def test_a_token_cannot_be_exchanged_for_another_token(live_server: Start) -> None:
    server = live_server(api_keys=[KEY])
    answer = server.http.post("/v1/auth/grant", headers={"Authorization": f"Bearer {granted(server)}"})
    assert (answer.status_code, answer.json()["err_code"]) == (403, "INSUFFICIENT_PERMISSIONS")


def test_a_token_shares_the_quota_of_its_key(live_server: Start, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"{hashlib.sha256(KEY.encode()).hexdigest()} streams=1")
    server = live_server(api_keys_file=path)
    token = granted(server)
    with server.listen(HEADERS) as client:
        with pytest.raises(InvalidStatus) as refused:
            server.listen({"Authorization": f"Bearer {token}"})
        assert refused.value.response.status_code == 429
        client.finish()


def test_a_server_without_keys_grants_tokens_too(live_server: Start) -> None:
    server = live_server()
    token = server.http.post("/v1/auth/grant").json()["access_token"]
    with server.listen({"Authorization": f"Bearer {token}"}) as client:
        client.finish()


def test_an_expired_token_is_refused_as_expired() -> None:
    tokens, now = Tokens([SECRET]), time.time()
    assert verified(tokens, tokens.mint("a", 60, now)) == "a"
    old = tokens.mint("a", 60, now - 60 - 2 * LEEWAY_S)
    with pytest.raises(NotAuthorized, match="expired"):
        tokens.verify(old)
    assert verified(tokens, tokens.mint("a", 60, now + 10 * LEEWAY_S)) is None, "issued in the future"


def test_tokens_with_other_claims_or_signatures_are_refused() -> None:
    tokens, now = Tokens([SECRET]), int(time.time())
    good = {"aud": "tutti", "sub": "a", "iat": now, "exp": now + 60}
    assert verified(tokens, jwt.encode(good, SECRET, "HS256")) == "a"
    for claims in (good | {"aud": "other"}, *({k: v for k, v in good.items() if k != name} for name in good)):
        assert verified(tokens, jwt.encode(claims, SECRET, "HS256")) is None
    assert verified(tokens, jwt.encode(good, "x" * MIN_SECRET_BYTES, "HS256")) is None
    assert verified(Tokens([SECRET * 2]), jwt.encode(good, SECRET * 2, "HS512")) is None
    assert verified(tokens, jwt.encode(good, "", "none")) is None
    head, body, signature = jwt.encode(good, SECRET, "HS256").split(".")
    assert verified(tokens, f"{head}.{body}.{signature[::-1]}") is None
    assert verified(tokens, f"{head}.{body}.") is None


def test_tokens_of_the_old_secret_are_accepted_alongside_the_new_one(tmp_path: Path) -> None:
    file, now = tmp_path / "token_keys", time.time()
    file.write_text(f"# the new one first\n{SECRET[::-1]}\n{SECRET}\n")
    before, after = Tokens([SECRET]), Tokens(secret for _, secret in read_secrets("token key", (), file))
    assert verified(after, before.mint("a", 60, now)) == "a"
    assert verified(before, after.mint("a", 60, now)) is None
    assert verified(Tokens(()), Tokens(()).mint("a", 60, now)) is None, "each process has its own secret"


def test_short_secrets_and_missing_or_empty_files_are_errors_of_settings(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="32 bytes"):
        Tokens(["short"])
    (tmp_path / "empty").write_text("# nothing")
    for path in (tmp_path / "empty", tmp_path / "absent"):
        with pytest.raises(SettingsError):
            read_secrets("token key", (), path)


def test_a_key_that_looks_like_a_token_is_still_a_key_outside_bearer() -> None:
    ring = KeyRing([Key.of("a.b.c")])
    assert ring.check(Credentials("a.b.c", None)).key == Key.of("a.b.c")
