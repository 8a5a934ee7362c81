"""A server of several processes admits streams and ends as one: its limit, drains, and processes lost for good."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from loadtest.served import free_port, is_ready, serve_command
from model.checkpoint import SHIPPED
from server.operations.process import EXIT_LOST
from tests.support.servers.front_ends import ENGINE_HOST, FRONT_END, RAW, WITHIN_S, FrontEnds, close_code
from tutti_asr_lab.processes import tree


@pytest.fixture(scope="module")
def limited() -> Iterator[FrontEnds]:
    """A server with three front ends and room for seven streams; a drain is its last test."""
    with FrontEnds(3, "--max-streams", "7") as server:
        yield server


def test_a_front_end_that_hangs_is_replaced_and_does_not_hold_up_a_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUTTI_DRAIN_TIMEOUT_S", "1")
    with FrontEnds(2) as server:
        hung = server.processes(FRONT_END)[0]
        server.kill(hung, signal.SIGSTOP)
        server.until(lambda: hung.pid not in {process.pid for process in server.processes(FRONT_END)})
        server.until(server.both_serve)
        server.kill(server.processes(FRONT_END)[0], signal.SIGSTOP)
        os.kill(server.pid, signal.SIGTERM)
        server.until(lambda: not server.left())


def test_no_more_streams_are_admitted_than_the_limit(limited: FrontEnds) -> None:
    admitted: list[ClientConnection] = []
    statuses: list[int] = []
    for _ in range(20):
        try:
            admitted.append(limited.opened())
        except InvalidStatus as error:
            statuses.append(error.response.status_code)
    assert (len(admitted), statuses) == (7, [503] * 13)
    admitted.pop().close()
    limited.until(limited.opened_and_closed)
    for client in admitted:
        client.close()
    limited.until(lambda: limited.metric('tutti_sessions_active{protocol="deepgram"}') == 0)


def test_a_drain_asked_of_one_front_end_is_of_all(limited: FrontEnds) -> None:
    client = limited.opened()
    with limited.http as http:
        assert http.post("/admin/drain").status_code == 202
        report = http.get("/admin/drain").json()
    assert report["phase"] == "waiting"
    assert report["sessions"] == {"deepgram": 1}
    for _ in range(6):  # all front ends refuse
        with pytest.raises(InvalidStatus):
            limited.opened()
    client.close()
    limited.until(lambda: not limited.left())


def test_without_its_supervisor_a_server_ends() -> None:
    with FrontEnds(2, "--drain-timeout-s", "1") as server:
        client = server.opened()
        server.processes()
        os.kill(server.pid, signal.SIGKILL)
        server.until(lambda: not [each for each in server.left() if each.pid != server.pid])
        client.close()


def test_a_server_whose_engine_cannot_be_replaced_ends_its_streams_and_itself(tmp_path: Path) -> None:
    model = tmp_path / SHIPPED.name
    for file in (SHIPPED, SHIPPED.with_suffix(".json")):
        shutil.copy(file, tmp_path)
    port = free_port()
    command = serve_command(port, ("--front-ends", "1", "--model", str(model), "--decoder", "greedy"))
    with subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL) as server:
        try:
            end_s = time.monotonic() + WITHIN_S
            while not is_ready(port):
                assert time.monotonic() < end_s, "the server did not start"
                time.sleep(0.1)
            client = connect(f"ws://127.0.0.1:{port}/v1/listen?{RAW}", compression=None, proxy=None, legacy=True)
            model.unlink()
            end_s = time.monotonic() + WITHIN_S
            while server.poll() is None:
                assert time.monotonic() < end_s, "the server did not end"
                for host in (each for each in tree(server.pid) if each.name == ENGINE_HOST):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(host.pid, signal.SIGKILL)
                time.sleep(0.2)
            assert server.returncode == EXIT_LOST
            assert close_code(client) == 1011
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)
