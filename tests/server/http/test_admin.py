"""Draining over HTTP: permissions and responses; health endpoints of KServe's protocol."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from starlette.requests import Request
from typer.testing import CliRunner

from server.cli import app
from server.http.admin import INDIRECT_HEADERS, is_direct
from tests.support.servers.live_server import LiveServer, transcript
from tests.support.servers.recognizers.spelling import spell

Start = Callable[..., LiveServer]


def request_from(host: str | None, /, **headers: str) -> Request:
    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "headers": named, "client": None if host is None else (host, 5_000)})


@pytest.mark.parametrize(
    ("request_", "direct"),
    [
        (request_from("127.0.0.1"), True),
        (request_from("::1"), True),
        (request_from("10.0.0.7"), False),
        (request_from(None), False),
        (request_from("not-an-address"), False),
        (request_from("127.0.0.1", x_forwarded_for="10.0.0.7"), False),
        (request_from("127.0.0.1", forwarded="for=10.0.0.7"), False),
        (request_from("127.0.0.1", via="1.1 proxy"), False),
        (request_from("127.0.0.1", origin="http://localhost:3000"), False),
        (request_from("127.0.0.1", sec_fetch_site="cross-site"), False),
        (request_from("127.0.0.1", host="localhost:8080"), True),
        (request_from("127.0.0.1", host="evil.example:8080"), False),
    ],
)
def test_only_requests_of_this_machine_without_a_proxy_or_page_are_direct(request_: Request, *, direct: bool) -> None:
    assert is_direct(request_) is direct


def test_sigterm_after_an_http_drain_does_not_force_the_exit(live_server: Start) -> None:
    server = live_server(drain_timeout_s=1_000.0)
    with server.http as http, server.listen() as client:
        client.send(spell("still "))
        assert http.get("/admin/drain").json()["phase"] == "serving"
        first = http.post("/admin/drain")
        assert (first.status_code, first.json()["phase"]) == (202, "waiting")
        assert http.post("/admin/drain").status_code == 200
        state = http.get("/admin/drain").json()
        assert state["sessions"] == {"deepgram": 1}
        assert 990 < state["remaining_s"] <= 1_000
        assert http.get("/readyz").status_code == 503
        assert http.get("/v1/status").json()["system_health"] == "Draining"
        server.server.handle_exit(signal.SIGTERM, None)  # as sent by the kubelet after the hook
        client.send(spell("here"))
        assert transcript(client.finish()) == "still here"
    server.join()
    assert server.server.forced_by is None


def test_without_admin_keys_requests_of_proxies_and_pages_are_refused(live_server: Start) -> None:
    server = live_server()
    with server.http as http:
        for name in INDIRECT_HEADERS:
            headers = {name: "127.0.0.1"}
            assert http.post("/admin/drain", headers=headers).status_code == 403
            assert http.get("/admin/drain", headers=headers).status_code == 403
        assert http.get("/readyz").status_code == 200


@pytest.mark.parametrize(
    "command", ["drain", "engine restart", "model list", "model load x", "model unload x"], ids=lambda words: words
)
def test_commands_say_what_to_set_where_admin_is_closed_or_needs_a_key(live_server: Start, command: str) -> None:
    words = command.split()
    closed = CliRunner().invoke(app, [*words, "--url", f"http://{live_server(admin_local=False).host}"])
    assert closed.exit_code == 1
    (line,) = closed.stderr.splitlines()
    assert "403: /admin is closed, because this server has no admin key: set TUTTI_ADMIN_KEYS" in line
    assert "TUTTI_ADMIN_LOCAL=true (--admin-local)" in line
    keyed = f"http://{live_server(admin_keys=['master']).host}"
    assert "--admin-key or TUTTI_ADMIN_KEY" in CliRunner().invoke(app, [*words, "--url", keyed]).stderr
    wrong = CliRunner().invoke(app, [*words, "--url", keyed, "--admin-key", "other"])
    assert "401: not one of the admin keys of the server" in wrong.stderr


def test_with_admin_keys_every_request_needs_one_and_client_keys_are_refused(live_server: Start) -> None:
    server = live_server(admin_keys=["master"], api_keys=["client"])
    with server.http as http:
        for headers in ({}, {"Authorization": "Token wrong"}, {"Authorization": "Token client"}):
            refused = http.post("/admin/drain", headers=headers)
            assert refused.status_code == 401
            assert "WWW-Authenticate" in refused.headers
        allowed = http.get("/admin/drain", headers={"Authorization": "Bearer master", "X-Forwarded-For": "10.0.0.7"})
        assert allowed.status_code == 200


def test_the_command_drains_and_waits_for_the_end(live_server: Start) -> None:
    server = live_server(admin_keys=["master"])
    url = f"http://{server.host}"
    refused = CliRunner().invoke(app, ["drain", "--url", url])
    assert refused.exit_code == 1
    assert "401" in refused.output
    own = dict(zip(("TUTTI_HOST", "TUTTI_PORT"), server.host.split(":"), strict=True))  # the server's variables
    done = CliRunner().invoke(app, ["drain", "--wait"], env={"TUTTI_ADMIN_KEY": "master", **own})
    assert done.exit_code == 0, done.output
    server.join()


def test_health_under_kserve_names_follows_readiness(live_server: Start) -> None:
    server = live_server(model_aliases={"nova": "default"})
    name = server.replica.models.default.name
    with server.listen(), server.http as http:  # a drain waits for the stream
        assert http.get("/v2").json() == {
            "name": "tutti",
            "version": http.get("/v2").json()["version"],
            "extensions": [],
        }
        assert http.get("/v2/health/live").json() == {"live": True}
        assert http.get("/v2/health/ready").json() == {"ready": True}
        for known in (name, "nova"):
            assert http.get(f"/v2/models/{known}/ready").json() == {"name": known, "ready": True}
        assert http.get("/v2/models/other/ready").status_code == 404
        assert http.post("/admin/drain").status_code == 202
        assert http.get("/v2/health/live").status_code == 200
        assert http.get("/v2/health/ready").status_code == 503
        assert http.get(f"/v2/models/{name}/ready").json() == {"name": name, "ready": False}
