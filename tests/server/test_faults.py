"""Faults of a server process, with real pipes, signals and limits: handled and reported as docs/faults.md says."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
from pathlib import Path

from tests.support.servers.live_server import transcript
from tests.support.servers.recognizers.spelling import spell
from tests.support.servers.server_process import ServerProcess


def test_a_full_disk_loses_log_lines_but_no_stream() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        with ServerProcess(stderr=full) as server:
            assert server.works()
            server.until(lambda: server.metric("tutti_log_lines_lost_total") > 0)
            assert server.works()
            assert server.stop(signal.SIGTERM) == 0
    finally:
        os.close(full)


def test_a_closed_log_pipe_loses_log_lines_but_no_stream() -> None:
    reading, writing = os.pipe()
    with ServerProcess(stderr=writing) as server:
        os.close(writing)
        os.close(reading)
        assert server.works()
        server.until(lambda: server.metric("tutti_log_lines_lost_total") > 0)
        assert server.stop(signal.SIGTERM) == 0


def test_a_stalled_log_reader_delays_no_request_and_loses_no_queued_line() -> None:
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


def test_closed_standard_streams_are_opened_on_dev_null() -> None:
    with ServerProcess(stderr=subprocess.DEVNULL, shell='"$@" <&- >&- 2>&-') as server:
        assert server.works()
        for fd in (0, 1, 2):
            assert Path(f"/proc/{server.process.pid}/fd/{fd}").readlink() == Path("/dev/null")
        assert server.stop(signal.SIGTERM) == 0


def test_a_shortage_of_descriptors_is_logged_and_the_server_recovers_from_it() -> None:
    with ServerProcess() as server, server.listen() as open_before:
        open_before.send(spell("before"))
        pid = server.process.pid
        used = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 2, hard))
        connections = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(64)]
        try:
            assert server.wait_for("no file descriptor is free: connections are dropped; raise the limit (ulimit -n)")
            open_before.send(spell(" and after"))
        finally:
            for connection in connections:
                connection.close()
        server.wait_for("file descriptors are free again")
        assert server.works()
        assert server.metric("tutti_file_descriptor_shortages_total") > 0
        assert transcript(open_before.finish()) == "before and after"
