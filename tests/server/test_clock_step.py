"""Jumps of the wall clock: nothing that times streams reads it, and a running server is not affected."""

from __future__ import annotations

import ast
import signal
from pathlib import Path

import pytest

from tests.support.needs import missing
from tests.support.servers.live_server import transcript
from tests.support.servers.recognizers.spelling import spell
from tests.support.servers.server_process import ServerProcess

ROOT = Path(__file__).parents[2]
LIBRARIES = (
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1",
)
READERS = {
    "server/protocols/deepgram/endpoints.py",  # `created` of an answer
    "server/app.py",  # `created` of the models
    "server/models/service_builder.py",  # hands tickets their clock
    "server/callbacks/delivery.py",  # time of a signature
    "server/callbacks/folder.py",  # ages of files
    "server/recognition/tracing.py",  # begin and end of spans, which have dates
    "server/access/tokens.py",  # expiry of browser tokens
    "server/access/voices.py",  # day of an enrollment
    "server/http/token_endpoint.py",  # the same
    "server/coordination/local.py",  # ages of used tickets
    "server/coordination/serving.py",  # the same
    "server/usage/log.py",  # names of files
    "server/usage/meters.py",  # start and end of usage records
}
"""Files of `batching` and `server` that may read the wall clock. Other packages, such as `model`, are not checked."""
WALL = {("time", "time"), ("time", "time_ns"), ("datetime", "now"), ("datetime", "utcnow"), ("datetime", "today")}


def test_only_listed_files_read_the_wall_clock() -> None:
    readers = set()
    for package in ("batching", "server"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                on_a_name = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
                if on_a_name and (node.value.id, node.attr) in WALL:
                    readers.add(path.relative_to(ROOT).as_posix())
    assert readers <= READERS


def fake_clock_library() -> str:
    """Path of libfaketime; without it the test is skipped, in CI it fails."""
    found = [path for path in LIBRARIES if Path(path).exists()]
    if not found:
        missing("libfaketime is not installed")
    return found[0]


@pytest.mark.parametrize("jump", ["-40d", "+40d"])
def test_streams_go_on_when_the_wall_clock_jumps_by_forty_days(tmp_path: Path, jump: str) -> None:
    offset = tmp_path / "offset"
    offset.write_text("+0")
    environment = {
        "LD_PRELOAD": fake_clock_library(),
        "FAKETIME_TIMESTAMP_FILE": str(offset),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_FORCE_MONOTONIC_FIX": "0",  # else its waits with a timeout return at once, and threads spin
    }
    with ServerProcess(environment=environment, idle_timeout_s=5.0) as server, server.listen() as client:
        before = server.wait_for("stream opened")["timestamp"]
        client.send(spell("before"))
        offset.write_text(jump)
        client.send(spell(" and after"))
        assert transcript(client.finish()) == "before and after"
        after = server.wait_for("stream closed")
        assert before[:10] != after["timestamp"][:10], "the clock did jump"
        assert 0 <= after["worst_latency_ms"] < 20_000
        assert server.http.get("/readyz").status_code == 200
        with server.listen() as fresh:
            fresh.send(spell("fresh"))
            assert transcript(fresh.finish()) == "fresh"
        assert server.metric("tutti_session_duration_seconds_sum") < 60
        assert server.stop(signal.SIGTERM) == 0
