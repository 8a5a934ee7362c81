"""Faults of the engine in a server process: streams are closed with 1011, and the process ends with `EXIT_LOST`."""

from __future__ import annotations

import signal

import pytest
from websockets.exceptions import InvalidStatus

from server.operations.process import EXIT_LOST
from server.operations.watchdog import FAILURES
from tests.support.servers.faulty_server import FATAL, HANGING, audio
from tests.support.servers.recognizers.spelling import poison
from tests.support.servers.server_process import ServerProcess


def test_a_dead_engine_closes_every_stream_and_ends_the_process() -> None:
    with ServerProcess() as server:
        with server.listen() as first, server.listen() as second:
            first.send(audio(FATAL))
            for client in (first, second):
                _, code, reason = client.rest()
                assert (code, reason.split()[0]) == (1011, "NET-0000")
        assert server.http.get("/readyz").status_code == 503
        with pytest.raises(InvalidStatus) as refused:
            server.listen()
        assert refused.value.response.status_code == 503
        assert server.stop() == EXIT_LOST
        log = server.rest_of_log()
    events = {line["event"]: line for line in log}
    assert "the device is gone" in str(events["a thread died"])
    assert events["the engine is lost, this process ends"]["level"] == "critical"


def test_a_hanging_step_closes_its_streams_and_then_ends_the_process() -> None:
    """An ordinary shutdown would wait for the model thread."""
    with ServerProcess(stall_timeout_s=1.5) as server:
        with server.listen() as client:
            client.send(audio(HANGING))
            _, code, reason = client.rest()
            assert (code, reason.split()[0]) == (1011, "NET-0000")
        assert server.stop() == EXIT_LOST
        errors = [line["event"] for line in server.rest_of_log() if line["level"] in ("error", "critical")]
    assert errors == ["the engine is lost, this process ends"]


def test_a_step_that_hangs_while_the_server_drains_is_no_failed_start() -> None:
    with ServerProcess(drain_timeout_s=0.0) as server:
        with server.listen() as client:
            client.send(audio(HANGING))
            server.until(lambda: server.metric('tutti_audio_seconds_total{encoding="linear16"}') > 0)
            assert server.stop(signal.SIGTERM) == 0
            assert client.rest()[1] == 1012
        errors = [line["event"] for line in server.rest_of_log() if line["level"] == "error"]
    assert errors == ["engine did not stop"]


def test_single_failed_steps_close_their_streams_and_a_run_of_them_ends_the_process() -> None:
    with ServerProcess() as server:
        for _ in range(FAILURES - 1):
            with server.listen() as client:
                client.send(poison())
                assert client.rest()[1] == 1011
        assert server.works(), "one bad stream after another is not the device's fault"
        while server.process.poll() is None:
            try:
                with server.listen() as client:
                    client.send(poison())
                    client.rest()
            except (OSError, InvalidStatus):
                break
        assert server.stop() == EXIT_LOST
