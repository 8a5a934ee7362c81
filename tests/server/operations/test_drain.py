"""Shutdown: the first signal drains, open sessions may finish, the rest are flushed and closed with 1012."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from tests.support.servers.fakes import WAIT_S
from tests.support.servers.live_server import LiveServer, transcript
from tests.support.servers.recognizers.spelling import GatedSpellingModel, spell
from tests.support.servers.server_process import ServerProcess

Start = Callable[..., LiveServer]


def test_drain_refuses_new_sessions_and_lets_open_ones_finish(live_server: Start) -> None:
    server = live_server(drain_timeout_s=20.0)
    with server.listen() as client:
        client.send(spell("to the"))
        server.server.handle_exit(signal.SIGTERM, None)
        assert server.http.get("/readyz").status_code == 503
        assert server.http.get("/healthz").status_code == 200
        assert server.metric("tutti_sessions_draining") == 1
        with pytest.raises(InvalidStatus) as refused:
            server.listen()
        assert refused.value.response.status_code == 503
        assert int(refused.value.response.headers["Retry-After"]) > 0
        assert json.loads(refused.value.response.body)["err_code"] == "SERVICE_UNAVAILABLE"
        assert server.http.post("/v1/listen", content=b"x").status_code == 503
        client.send(spell(" end"))
        assert transcript(client.finish()) == "to the end"
    server.join()
    assert server.server.forced_by is None


@pytest.mark.parametrize(("timeout_s", "status"), [(WAIT_S, 200), (0.1, 503)])
def test_an_upload_is_answered_within_the_drain_and_the_next_is_refused(
    live_server: Start, timeout_s: float, status: int
) -> None:
    model = GatedSpellingModel()
    server = live_server(model=model, drain_timeout_s=timeout_s)
    model.shut()
    raw = {"encoding": "linear16", "sample_rate": 16_000}

    def post() -> httpx.Response:
        return server.http.post("/v1/listen", params=raw, content=spell("whole").tobytes())

    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(post)
        model.wait_inside()
        server.server.handle_exit(signal.SIGTERM, None)
        refused = post() if status == 200 else sent.result(WAIT_S)
        model.open()
    assert sent.result().status_code == status
    assert ("whole" in sent.result().text) is (status == 200)
    assert (refused.status_code, "Retry-After" in refused.headers) == (503, True)
    server.join()


@pytest.mark.parametrize("signals", [1, 2])
def test_the_status_of_a_process_says_whether_it_was_forced(signals: int) -> None:
    with ServerProcess(drain_timeout_s=0.0 if signals == 1 else 1_000.0) as server, server.listen() as client:
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("draining")
        assert server.stop(*[signal.SIGTERM] * (signals - 1)) == (0 if signals == 1 else 128 + signal.SIGTERM)
        assert client.rest()[1] == 1012
        log = server.rest_of_log()
    reasons = [line["reason"] for line in log if line["event"] == "stream closed"]
    assert reasons == ["drain"] or signals == 2
    assert not [line for line in log if line["level"] == "error"]
