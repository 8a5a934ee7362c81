"""How a replica stops: the first signal drains, what is open may finish, what stays is flushed and closed with 1012."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable

import pytest
from live_server import LiveServer, transcript
from spelling import spell
from websockets.exceptions import InvalidStatus

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
