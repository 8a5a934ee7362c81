"""Faults of a whole process, each with the real thing: survived, or failed loudly, as docs/faults.md says."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from faulty_server import FATAL, HANGING, audio
from live_server import transcript
from server_process import FAULTY, START_S, ServerProcess
from spelling import poison, spell
from websockets.exceptions import InvalidStatus

from server.process import EXIT_LOST
from server.vigil import FAILURES


def works(server: ServerProcess) -> bool:
    """Whether a stream is recognised."""
    with server.listen() as client:
        client.send(spell("still here"))
        return transcript(client.finish()) == "still here"


def test_a_dead_engine_breaks_every_stream_and_ends_the_process() -> None:
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


def test_a_step_that_hangs_breaks_its_streams_and_then_ends_the_process() -> None:
    """Ordinary shutdown would wait for the thread."""
    with ServerProcess(stall_timeout_s=0.5, write_timeout_s=0.5, engine_timeout_s=3.0) as server:
        with server.listen() as client:
            client.send(audio(HANGING))
            _, code, reason = client.rest()
            assert (code, reason.split()[0]) == (1011, "NET-0000")
        assert server.stop() == EXIT_LOST
        errors = [line["event"] for line in server.rest_of_log() if line["level"] in ("error", "critical")]
    assert errors == ["the engine is lost, this process ends"]


def test_failing_steps_break_their_streams_until_none_succeeds_any_more() -> None:
    with ServerProcess() as server:
        for _ in range(FAILURES - 1):
            with server.listen() as client:
                client.send(poison())
                assert client.rest()[1] == 1011
        assert works(server), "one bad stream after another is not the device's fault"
        while server.process.poll() is None:
            try:
                with server.listen() as client:
                    client.send(poison())
                    client.rest()
            except (OSError, InvalidStatus):
                break
        assert server.stop() == EXIT_LOST


def test_a_full_disk_costs_log_lines_and_no_stream() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        with ServerProcess(stderr=full) as server:
            assert works(server)
            server.until(lambda: server.metric("tutti_log_lines_lost_total") > 0)
            assert works(server)
            assert server.stop(signal.SIGTERM) == 0
    finally:
        os.close(full)


def test_a_log_reader_that_is_gone_costs_log_lines_and_no_stream() -> None:
    reading, writing = os.pipe()
    with ServerProcess(stderr=writing) as server:
        os.close(writing)
        os.close(reading)
        assert works(server)
        server.until(lambda: server.metric("tutti_log_lines_lost_total") > 0)
        assert server.stop(signal.SIGTERM) == 0


def test_a_log_reader_that_stands_still_holds_nothing_up_and_loses_nothing_that_fits() -> None:
    reading, writing = os.pipe()
    with ServerProcess(stderr=writing) as server, os.fdopen(reading, "rb") as pipe:
        os.close(writing)
        with server.http as http:
            for number in range(600):  # of 150 bytes and more each: a pipe holds 64 KiB
                assert http.get(f"/absent/{number}").status_code == 404
        assert works(server)
        assert server.metric("tutti_log_lines_lost_total") == 0
        server.process.send_signal(signal.SIGTERM)
        lines = pipe.read().decode().splitlines()
        assert server.stop() == 0
    assert sum('"/absent/' in line for line in lines) == 600


def test_standard_streams_that_are_closed_do_not_become_sockets() -> None:
    with ServerProcess(stderr=subprocess.DEVNULL, shell='"$@" <&- >&- 2>&-') as server:
        assert works(server)
        for fd in (0, 1, 2):
            assert Path(f"/proc/{server.process.pid}/fd/{fd}").readlink() == Path("/dev/null")
        assert server.stop(signal.SIGTERM) == 0


def test_without_descriptors_connections_are_dropped_aloud_and_come_back() -> None:
    with ServerProcess() as server, server.listen() as open_before:
        open_before.send(spell("before"))
        pid = server.process.pid
        used = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 2, hard))
        crowd = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(12)]
        try:
            assert server.wait_for("no file descriptor is free: connections are dropped; raise the limit (ulimit -n)")
            open_before.send(spell(" and after"))
        finally:
            for connection in crowd:
                connection.close()
        server.wait_for("file descriptors are free again")
        assert works(server)
        assert server.metric("tutti_file_descriptor_shortages_total") > 0
        assert transcript(open_before.finish()) == "before and after"


def test_a_port_that_is_taken_is_named_and_ends_the_process_at_once() -> None:
    with ServerProcess() as server:
        settings = json.dumps({"port": server.port, "log_format": "json"})
        second = subprocess.run(
            [sys.executable, str(FAULTY), settings],
            capture_output=True,
            text=True,
            timeout=START_S,
            check=False,
            cwd=FAULTY.parent.parent,
            env=os.environ | {"PYTHONPATH": "."},
        )
        assert second.returncode == 3
        assert f"'127.0.0.1', {server.port}" in second.stderr
        assert works(server), "the first is not disturbed"
