"""The shipped proxy files with real proxies and servers: balancing, refusals, drains, failures, timeouts."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from server.http.uvicorn_server import uvicorn_config
from server.protocols.uploads import BODY_TIMEOUT_S
from tests.support.deployment.edge import Hang, closed_port, first_server_is_draining, http, listen, proxied, wait_until
from tests.support.servers.fakes import WAIT_S
from tests.support.servers.live_server import Client, LiveServer, transcript
from tests.support.servers.recognizers.spelling import spell
from tutti_asr_lab.trials.proxies import PROXIES

Start = Callable[..., LiveServer]
every_proxy = pytest.mark.parametrize("name", list(PROXIES))


@every_proxy
def test_a_stream_is_uncompressed_although_the_client_offers_compression(live_server: Start, name: str) -> None:
    with proxied(name, live_server()) as proxy, listen(proxy) as client:
        response = client.socket.response
        assert response is not None
        assert "sec-websocket-extensions" not in response.headers
        assert response.headers["dg-request-id"]
        client.send(spell("as it was said"))
        assert transcript(client.finish()) == "as it was said"


@every_proxy
def test_streams_spread_over_the_replicas(live_server: Start, name: str) -> None:
    servers = [live_server() for _ in range(3)]
    with proxied(name, *servers) as proxy, ExitStack() as stack:
        for _ in range(12):
            stack.enter_context(listen(proxy))
        # Envoy chooses the better of two random servers, so not always four each.
        assert min(len(server.replica.sessions) for server in servers) >= 1


@every_proxy
def test_a_handshake_refused_by_a_full_replica_is_accepted_by_another(live_server: Start, name: str) -> None:
    full, free = live_server(max_streams=1), live_server(max_streams=8)
    with full.listen(), proxied(name, full, free) as proxy, ExitStack() as stack:
        for text in ("one", "two", "three", "four"):
            client = stack.enter_context(listen(proxy))
            client.send(spell(text))
            assert transcript(client.finish()) == text
        assert len(full.replica.sessions) == 1


@every_proxy
def test_if_all_replicas_are_full_the_client_gets_the_refusal_of_one(live_server: Start, name: str) -> None:
    servers = [live_server(max_streams=1) for _ in range(2)]
    with servers[0].listen(), servers[1].listen(), proxied(name, *servers) as proxy:
        with pytest.raises(InvalidStatus) as refused:
            listen(proxy)
        response = refused.value.response
        assert response.status_code == 503
        assert int(response.headers["Retry-After"]) > 0
        assert b"SERVICE_UNAVAILABLE" in (response.body or b"")


def test_a_refusal_by_haproxy_has_the_form_of_a_replicas(live_server: Start) -> None:
    server = live_server(drain_timeout_s=WAIT_S)
    with proxied("haproxy", server) as proxy, server.listen() as held:
        server.replica.sessions.draining = True
        with http(proxy) as client:
            wait_until(lambda: client.get("/edge").status_code == 503)
            answer = client.get("/v1/status")
        assert answer.status_code == 503
        assert int(answer.headers["Retry-After"]) > 0
        assert answer.json()["err_code"] == "SERVICE_UNAVAILABLE"
        assert held.finish()


@every_proxy
def test_streams_open_while_a_replica_is_down(live_server: Start, name: str) -> None:
    with proxied(name, closed_port(), live_server()) as proxy:
        for text in ("one", "two", "three"):
            with listen(proxy) as client:
                client.send(spell(text))
                assert transcript(client.finish()) == text


@every_proxy
def test_a_draining_replica_keeps_its_streams_and_gets_no_new_ones(live_server: Start, name: str) -> None:
    drains, other = live_server(), live_server()
    with proxied(name, drains, other) as proxy, ExitStack() as stack:
        streams = []
        while not len(drains.replica.sessions):
            streams.append(stack.enter_context(listen(proxy)))
        drains.replica.sessions.draining = True
        wait_until(lambda: first_server_is_draining(name, proxy))
        before = len(drains.replica.sessions), len(other.replica.sessions)
        with listen(proxy), listen(proxy), listen(proxy):
            assert (len(drains.replica.sessions), len(other.replica.sessions)) == (before[0], before[1] + 3)
        for client in streams:
            client.send(spell("to the end"))
            assert transcript(client.finish()) == "to the end"


def test_haproxy_cuts_streams_of_a_hanging_replica_and_routes_new_ones_elsewhere(live_server: Start) -> None:
    hangs, other = (live_server(idle_timeout_s=10 * WAIT_S) for _ in range(2))
    with proxied("haproxy", hangs, other) as proxy, listen(proxy) as first, listen(proxy) as second:
        wait_until(lambda: len(hangs.replica.sessions) == len(other.replica.sessions) == 1)
        with Hang(hangs):
            cut, kept = _cut_one(first, second)
            with pytest.raises(ConnectionClosed):
                cut.until(lambda _: False)
            with listen(proxy) as client:
                client.send(spell("elsewhere"))
                assert transcript(client.finish()) == "elsewhere"
        kept.send(spell("undisturbed"))
        assert transcript(kept.finish()) == "undisturbed"


def _cut_one(first: Client, second: Client) -> tuple[Client, Client]:
    """Return, of two streams, the one that the proxy cuts, and the other."""
    found: list[tuple[Client, Client]] = []

    def look() -> bool:
        pairs = ((first, second), (second, first))
        found[:] = [pair for pair in pairs if not pair[0].socket.recv_events_thread.is_alive()]
        return bool(found)

    wait_until(look)
    return found[0]


OTHERS = "        location / {"
PLAIN = ((OTHERS, f"        location /admin {{ proxy_pass http://replicas; proxy_set_header Host $host; }}\n{OTHERS}"),)
"""A minimal nginx configuration: no header shows that a request comes from another machine."""
WITH_ADDRESS = ((OTHERS, f"        location /admin {{ proxy_pass http://replicas; }}\n{OTHERS}"),)


def test_admin_is_closed_through_a_plain_proxy_pass(live_server: Start) -> None:
    server = live_server(admin_local=False)
    with proxied("nginx", server, changes=PLAIN) as proxy, http(proxy) as client, server.http as direct:
        for method, path in (("POST", "/admin/drain"), ("GET", "/admin/models"), ("POST", "/admin/models/x/unload")):
            refused = client.request(method, path)
            assert (refused.status_code, "TUTTI_ADMIN_KEYS" in refused.text) == (403, True)
            assert direct.request(method, path).status_code == 403, "the two cannot be distinguished"
        assert not server.replica.sessions.draining
        assert direct.get("/readyz").status_code == 200


def test_admin_local_is_for_local_peers_without_proxy_headers(live_server: Start) -> None:
    server = live_server(admin_local=True)
    parts = proxied("nginx", server, changes=WITH_ADDRESS), server.listen()  # a drain waits for the stream
    with parts[0] as proxy, parts[1], http(proxy) as client, server.http as direct:
        assert client.post("/admin/drain").status_code == 403
        assert not server.replica.sessions.draining
        assert direct.post("/admin/drain").status_code == 202
        assert server.replica.sessions.draining


def test_a_key_opens_admin_through_any_proxy(live_server: Start) -> None:
    server = live_server(admin_local=False, admin_keys=["master"])
    with proxied("nginx", server, changes=PLAIN) as proxy, http(proxy) as client:
        assert client.get("/admin/drain").status_code == 401
        assert client.get("/admin/drain", headers={"Authorization": "Bearer master"}).status_code == 200


@every_proxy
def test_uploads_pass(live_server: Start, name: str) -> None:
    query = "/v1/listen?encoding=linear16&sample_rate=16000"
    with proxied(name, live_server()) as proxy, http(proxy) as client:
        answer = client.post(query, content=spell("a whole recording").tobytes())
        assert answer.status_code == 200, answer.text
        assert "a whole recording" in answer.text


SHORT_LIVED = {  # all timeouts except that of an open stream, set below one second
    "haproxy": (
        ("timeout client 60s", "timeout client 1s"),
        ("timeout server 150s", "timeout server 1s"),
        ("timeout http-request 10s", "timeout http-request 1s"),
    ),
    "nginx": (("client_header_timeout 10s", "client_header_timeout 1s"),),
    "envoy": (("request_headers_timeout: 10s", "request_headers_timeout: 1s"),),
}


@every_proxy
def test_an_open_stream_is_not_subject_to_request_timeouts(live_server: Start, name: str) -> None:
    """Wait for the server's idle timeout, which must be what ends the stream."""
    with proxied(name, live_server(idle_timeout_s=2.0), changes=SHORT_LIVED[name]) as proxy, listen(proxy) as client:
        _, code, reason = client.rest()
        assert code == 1011, reason


STREAM_LIMITS = {
    "haproxy": ("timeout tunnel 1h", "timeout tunnel 1s"),
    "nginx": ("proxy_read_timeout 45s", "proxy_read_timeout 1s"),
    "envoy": ("stream_idle_timeout: 60s", "stream_idle_timeout: 1s"),
}
UPLOAD_LIMITS_S = {
    "haproxy": r"timeout server (\d+)s",
    "nginx": r"@upload \{[^}]*proxy_read_timeout (\d+)s",
    "envoy": r"timeout: (\d+)s, idle_timeout: \1s",
}


class SlowReplica(BaseHTTPRequestHandler):
    """Answers a POST after one and a half seconds, and everything else at once."""

    def do_GET(self) -> None:
        self._reply(b"ready")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        threading.Event().wait(1.5)
        self._reply(b"recognized")

    def _reply(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@every_proxy
def test_an_upload_may_be_silent_for_longer_than_a_stream(name: str) -> None:
    [text] = re.findall(UPLOAD_LIMITS_S[name], PROXIES[name].config.read_text())
    assert float(text) > BODY_TIMEOUT_S, "the body alone may take this long"
    with ThreadingHTTPServer(("127.0.0.1", 0), SlowReplica) as slow:
        threading.Thread(target=slow.serve_forever).start()
        try:
            with proxied(name, slow.server_port, changes=(STREAM_LIMITS[name],)) as proxy, http(proxy) as client:
                wait_until(lambda: client.get("/v1/status").status_code == 200)
                answer = client.post("/v1/listen", content=b"audio")
                assert (answer.status_code, answer.content) == (200, b"recognized")
        finally:
            slow.shutdown()


@every_proxy
def test_a_stream_may_be_silent_for_longer_than_the_time_between_pings(live_server: Start, name: str) -> None:
    server = live_server()
    ping_s = uvicorn_config(server.app, server.replica).ws_ping_interval
    assert ping_s is not None
    limit = STREAM_LIMITS[name][0].split()[-1]
    assert float(limit[:-1]) * {"s": 1, "h": 3600}[limit[-1]] > 2 * ping_s, "one pong may be lost"


@pytest.mark.parametrize(("name", "change"), STREAM_LIMITS.items())
def test_this_setting_is_the_timeout_of_an_open_stream(live_server: Start, name: str, change: tuple[str, str]) -> None:
    with proxied(name, live_server(idle_timeout_s=WAIT_S), changes=(change,)) as proxy, listen(proxy) as client:
        with pytest.raises(ConnectionClosed) as closed:
            client.receive()
        assert closed.value.rcvd is None, "cut by the proxy, not closed by the server"
