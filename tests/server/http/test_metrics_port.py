"""`/metrics` on a port of its own: what each port serves, with one process and with front ends."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from loadtest.served import free_port
from tests.support.servers.fakes import WAIT_S
from tests.support.servers.front_ends import FrontEnds
from tests.support.servers.live_server import LiveServer

Start = Callable[..., LiveServer]


def test_without_it_the_main_port_serves_metrics(live_server: Start) -> None:
    server = live_server()
    assert "metrics_port" not in server.application.ports
    assert "tutti_ready 1.0" in server.http.get("/metrics").text
    assert "/metrics" in server.http.get("/openapi.json").json()["paths"]


def test_with_it_the_main_port_has_no_metrics(live_server: Start) -> None:
    server = live_server(metrics_port=0)
    with httpx.Client(base_url=f"http://127.0.0.1:{server.metrics_port}", timeout=WAIT_S) as metrics:
        assert "tutti_ready 1.0" in metrics.get("/metrics").text
        assert metrics.head("/metrics").status_code == 200
        for path in ("/", "/readyz", "/healthz", "/v1/status", "/v1/listen", "/admin/drain", "/openapi.json", "/docs"):
            refused = metrics.get(path)
            assert (refused.status_code, "only /metrics" in refused.json()["err_msg"]) == (404, True), path
        assert metrics.post("/admin/drain").status_code == 404
    assert server.http.get("/metrics").json()["err_code"] == "NOT_FOUND"
    assert "/metrics" not in server.http.get("/openapi.json").json()["paths"]
    assert server.http.get("/readyz").status_code == 200
    with pytest.raises(InvalidStatus) as refusal:
        connect(f"ws://127.0.0.1:{server.metrics_port}/v1/listen", proxy=None)
    assert refusal.value.response.status_code == 404


def test_it_answers_during_a_drain(live_server: Start) -> None:
    server = live_server(metrics_port=0, drain_timeout_s=WAIT_S)
    with server.listen() as held:
        assert server.http.post("/admin/drain").status_code == 202
        text = httpx.get(f"http://127.0.0.1:{server.metrics_port}/metrics", timeout=WAIT_S).text
        assert "tutti_sessions_draining 1.0" in text
        held.finish()


def test_front_ends_serve_the_metrics_of_the_whole_server_on_it() -> None:
    port = free_port()
    with FrontEnds(2, "--metrics-port", str(port)) as server:
        text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=WAIT_S).text
        assert "tutti_ready 1.0" in text
        assert "tutti_sessions_max 64.0" in text, "the whole server's, which two front ends share"
        main = f"http://{urlsplit(server.url).netloc}"
        assert httpx.get(f"{main}/metrics", timeout=WAIT_S).status_code == 404
        assert httpx.get(f"{main}/readyz", timeout=WAIT_S).status_code == 200
