"""How a replica stops: the first signal drains, what is open may finish, what stays is flushed and closed with 1012."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest
from fakes import WAIT_S
from live_server import LiveServer, transcript
from spelling import spell
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

Start = Callable[..., LiveServer]


def sigterm(server: LiveServer) -> None:
    """What the operating system does."""
    server.server.handle_exit(signal.SIGTERM, None)


def test_a_drain_refuses_the_new_and_lets_the_open_finish(live_server: Start) -> None:
    server = live_server(drain_timeout_s=20.0)
    with server.listen() as client:
        client.send(spell("to the"))
        sigterm(server)
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


def test_streams_that_do_not_end_are_flushed_and_closed_with_1012(live_server: Start) -> None:
    server = live_server(drain_timeout_s=0.1)
    with server.listen() as talking, server.listen() as silent:
        talking.send(spell("half a sen"))
        sigterm(server)
        frames, code, _ = talking.rest()
        assert (transcript(frames), frames[-1]["type"], code) == ("half a sen", "Metadata", 1012)
        frames, code, _ = silent.rest()
        assert ([f["type"] for f in frames], code) == (["Metadata"], 1012)
    server.join()


def test_an_empty_server_stops_at_once(live_server: Start) -> None:
    server = live_server(drain_timeout_s=1_000.0)
    sigterm(server)
    server.join()


def test_a_second_signal_does_not_wait(live_server: Start) -> None:
    server = live_server(drain_timeout_s=1_000.0)
    with server.listen() as client:
        client.send(spell("wait"))
        sigterm(server)
        sigterm(server)
        assert client.rest()[1] == 1012
    server.join()
    assert server.server.forced_by == signal.SIGTERM


def test_the_process_says_where_it_listens_and_exits_with_0_after_sigterm() -> None:
    command = [
        sys.executable,
        "-m",
        "server.cli",
        "serve",
        "--port",
        "0",
        "--drain-timeout-s",
        "0",
        "--decoder",
        "greedy",
        "--log-format",
        "json",
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        where = json.loads(process.stderr.readline())
        assert where["event"] == "listening"
        url = where["url"].replace("http", "ws") + "/v1/listen?encoding=linear16&sample_rate=16000"
        with connect(url, compression=None) as socket:
            socket.send(spell("hello").tobytes())
            process.send_signal(signal.SIGTERM)
            with pytest.raises(ConnectionClosed, match="1012"):
                list(iter(socket.recv, None))
        log = [json.loads(line) for line in process.stderr]
        assert process.wait(timeout=WAIT_S) == 0
    assert {"stream opened", "draining", "stream closed"} <= {line["event"] for line in log}
    assert [line["reason"] for line in log if line["event"] == "stream closed"] == ["drain"]
    assert not [line for line in log if line.get("level") not in ("info", None)]
