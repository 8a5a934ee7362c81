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

from live_server import transcript
from server_process import FAULTY, START_S, ServerProcess
from spelling import spell


def test_a_full_disk_costs_log_lines_and_no_stream() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        with ServerProcess(stderr=full) as server:
            assert server.works()
            server.until(lambda: server.metric("tutti_log_lines_lost_total") > 0)
            assert server.works()
            assert server.stop(signal.SIGTERM) == 0
    finally:
        os.close(full)


def test_a_log_reader_that_is_gone_costs_log_lines_and_no_stream() -> None:
    reading, writing = os.pipe()
    with ServerProcess(stderr=writing) as server:
        os.close(writing)
        os.close(reading)
        assert server.works()
        server.until(lambda: server.metric("tutti_log_lines_lost_total") > 0)
        assert server.stop(signal.SIGTERM) == 0


def test_a_log_reader_that_stands_still_holds_nothing_up_and_loses_nothing_that_fits() -> None:
    reading, writing = os.pipe()
    with ServerProcess(stderr=writing) as server, os.fdopen(reading, "rb") as pipe:
        os.close(writing)
        with server.http as http:
            for number in range(600):  # of 150 bytes and more each: a pipe holds 64 KiB
                assert http.get(f"/absent/{number}").status_code == 404
        assert server.works()
        assert server.metric("tutti_log_lines_lost_total") == 0
        server.process.send_signal(signal.SIGTERM)
        lines = pipe.read().decode().splitlines()
        assert server.stop() == 0
    assert sum('"(unknown)"' in line for line in lines) == 600


def test_standard_streams_that_are_closed_do_not_become_sockets() -> None:
    with ServerProcess(stderr=subprocess.DEVNULL, shell='"$@" <&- >&- 2>&-') as server:
        assert server.works()
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
        assert server.works()
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
            cwd=FAULTY.parents[2],
            env=os.environ | {"PYTHONPATH": "."},
        )
        assert second.returncode == 3
        assert f"'127.0.0.1', {server.port}" in second.stderr
        assert server.works(), "the first is not disturbed"
