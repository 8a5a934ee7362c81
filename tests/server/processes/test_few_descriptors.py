"""Front ends without a free file descriptor: connections are dropped, and once some have gone all is as before."""

from __future__ import annotations

import resource
import socket
from contextlib import ExitStack
from pathlib import Path

from tests.support.servers.front_ends import FRONT_END, FrontEnds

CONNECTIONS = 60
FEW = 40
"""Descriptors of a front end, half of which it needs for itself."""


def test_handshakes_metrics_and_the_end_work_after_a_shortage_of_descriptors(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with FrontEnds(2, log=log) as server:
        pids = [process.pid for process in server.processes(FRONT_END)]
        before = {pid: resource.prlimit(pid, resource.RLIMIT_NOFILE) for pid in pids}
        assert all(soft == hard for soft, hard in before.values()), "a front end takes all that it may"
        for pid, (_, hard) in before.items():
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (FEW, hard))
        with ExitStack() as held:
            for _ in range(CONNECTIONS):
                held.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            server.until(lambda: "no file descriptor is free" in log.read_text(encoding="utf-8"))
        server.until(server.opened_and_closed)
        for pid, limits in before.items():
            resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        server.until(server.both_serve)
        with server.http as http:
            assert http.get("/readyz").status_code == 200
        assert server.metric("tutti_ready") == 1
        assert "IndexError" not in log.read_text(encoding="utf-8")
