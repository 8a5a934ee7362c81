"""Shutdown: the first signal drains, open sessions may finish, the rest are flushed and closed with 1012."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from tests.support.servers.fakes import WAIT_S
from tests.support.servers.live_server import LiveServer, transcript
from tests.support.servers.server_process import ServerProcess
from tests.support.servers.spelling import GatedSpellingModel, spell

Start = Callable[..., LiveServer]


def sigterm(server: LiveServer) -> None:
    """Deliver SIGTERM to the server."""
    server.server.handle_exit(signal.SIGTERM, None)


def test_drain_refuses_new_sessions_and_lets_open_ones_finish(live_server: Start) -> None:
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


def test_a_resumable_stream_is_sent_to_another_replica_at_once_with_its_ticket(live_server: Start) -> None:
    server = live_server(drain_timeout_s=1_000.0)
    with server.listen(resumable="true") as goes, server.listen() as stays:
        goes.send(spell("go"))
        stays.send(spell("st"))
        sigterm(server)
        frames, code, _ = goes.rest()
        assert (frames[-1]["type"], code) == ("Ticket", 1012)
        assert "Metadata" not in {frame["type"] for frame in frames}
        stays.send(spell("ay"))
        assert transcript(stays.finish()) == "stay"
    server.join()


def test_an_upload_under_way_is_answered_and_the_next_is_refused(live_server: Start) -> None:
    model = GatedSpellingModel()
    server = live_server(model=model, drain_timeout_s=WAIT_S)
    model.shut()
    raw = {"encoding": "linear16", "sample_rate": 16_000}
    answers: list[httpx.Response] = []

    def post() -> None:
        answers.append(server.http.post("/v1/listen", params=raw, content=spell("whole").tobytes()))

    sender = threading.Thread(target=post)
    sender.start()
    model.wait_inside()
    sigterm(server)
    refused = server.http.post("/v1/listen", params=raw, content=b"xx")
    assert (refused.status_code, "Retry-After" in refused.headers) == (503, True)
    model.open()
    sender.join(timeout=WAIT_S)
    assert answers[0].json()["results"]["channels"][0]["alternatives"][0]["transcript"] == "whole"
    server.join()


def test_upload_that_outlasts_the_drain_gets_503_with_retry_after(live_server: Start) -> None:
    model = GatedSpellingModel()
    server = live_server(model=model, drain_timeout_s=0.1)
    model.shut()
    answers: list[httpx.Response] = []

    def post() -> None:
        body = spell("too long").tobytes()
        answers.append(server.http.post("/v1/listen?encoding=linear16&sample_rate=16000", content=body))

    sender = threading.Thread(target=post)
    sender.start()
    model.wait_inside()
    sigterm(server)
    sender.join(timeout=WAIT_S)
    assert (answers[0].status_code, "Retry-After" in answers[0].headers) == (503, True)
    model.open()
    server.join()


def test_an_empty_server_stops_at_once(live_server: Start) -> None:
    server = live_server(drain_timeout_s=1_000.0)
    sigterm(server)
    server.join()


def test_second_signal_stops_at_once(live_server: Start) -> None:
    server = live_server(drain_timeout_s=1_000.0)
    with server.listen() as client:
        client.send(spell("wait"))
        sigterm(server)
        sigterm(server)
        assert client.rest()[1] == 1012
    server.join()
    assert server.server.forced_by == signal.SIGTERM


def test_process_logs_its_address_and_exits_with_0_after_sigterm() -> None:
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
        loaded, where = json.loads(process.stderr.readline()), json.loads(process.stderr.readline())
        assert (loaded["event"], where["event"]) == ("model loaded", "listening")
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


def test_second_signal_exits_with_the_status_of_the_signal() -> None:
    with ServerProcess(drain_timeout_s=1_000.0) as server, server.listen() as client:
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("draining")
        assert server.stop(signal.SIGTERM) == 128 + signal.SIGTERM
        assert client.rest()[1] == 1012
        assert not [line for line in server.rest_of_log() if line["level"] == "error"]
