"""The load generator reports known delays and faults of a server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from loadtest.errors import NoReference
from loadtest.measurement.report import Document, faults
from loadtest.measurement.run import measure_levels, run_loadtest
from tests.support.clients.fake_listen import STEP_S, FakeListen, Plan
from tests.support.clients.loadtest_bench import (
    LEVEL_S,
    RECORDINGS,
    STEPS,
    WITHIN_S,
    settings,
    under_load,
    write_manifest,
)

TRIES = 4  # the best one counts, since other processes may use the cores


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    return write_manifest(tmp_path)


def test_a_server_without_faults_gets_a_clean_report_that_includes_its_delay(manifest: Path) -> None:
    for _ in range(TRIES):
        level, _ = under_load(manifest, lambda _: Plan(delay_s=0.02))
        assert faults(level) == []
        chunk, final = level.chunk_latency_ms, level.final_latency_ms
        assert chunk is not None
        assert final is not None
        if chunk.p50 < 200 and final.p50 < 300:
            break
    assert 20 <= chunk.p50 < 200
    assert 20 <= final.p50 < 300  # the final follows the result of the last step
    assert level.compared == level.complete >= 3
    assert level.steps == pytest.approx(3 * LEVEL_S / STEP_S * STEPS / (STEPS + 0.5), abs=4)
    assert (level.queue_wait_ms.mean, level.step_ms.mean, level.decode_ms.p98) == pytest.approx((1.0, 2.0, 0.5), 0.01)  # type: ignore[union-attr]
    assert level.server.mean_batch == 2.0
    assert level.generator_cpu_cores > 0


def test_a_recording_that_fails_without_load_stops_the_test(manifest: Path) -> None:
    async def main() -> None:
        async with FakeListen(lambda _: Plan(close_after=1)).running() as server:
            with pytest.raises(NoReference, match=r"r\d\.wav.*1011"):
                await measure_levels(settings(manifest, server.url), progress=lambda _: None)

    asyncio.run(asyncio.wait_for(main(), WITHIN_S))


def test_ctrl_c_keeps_the_levels_measured_so_far(manifest: Path) -> None:
    def plan(number: int) -> Plan:
        if number == RECORDINGS + 4:  # the second recording of some stream
            os.kill(os.getpid(), signal.SIGINT)
        return Plan()

    async def main() -> Document:
        async with FakeListen(plan).running() as server:
            long = settings(manifest, server.url, streams=(3, 5), seconds=60.0)
            return (await measure_levels(long, progress=lambda _: None)).document

    document = asyncio.run(asyncio.wait_for(main(), WITHIN_S))
    assert document.interrupted
    [level] = document.levels
    assert level.streams == 3
    assert 0 < level.seconds < 5
    assert level.steps > 0
    assert level.failed == 0


def test_the_last_line_of_stdout_is_the_json_document(
    manifest: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    picture = tmp_path / "pictures" / "p.png"
    with FakeListen().in_thread() as server:
        code = run_loadtest(settings(manifest, server.url, policy_label="x"), as_json=True, plot_path=picture)
    assert code == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    [level] = document["levels"]
    assert {"p50", "p90", "p95", "p98", "p99", "max"} <= level["chunk_latency_ms"].keys()
    assert (level["streams"], level["policy"], level["failed"], level["mismatched"]) == (3, "x", 0, 0)
    assert {"hardware", "python", "versions", "commit", "seed", "date"} <= document["environment"].keys()
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_result_with_faults_gives_exit_code_1(manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeListen(lambda number: Plan(garble=number == RECORDINGS)).in_thread() as server:
        assert run_loadtest(settings(manifest, server.url)) == 1
    assert "differ from those without load" in capsys.readouterr().out


def test_a_missing_server_is_reported_with_its_address(manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_loadtest(settings(manifest, "ws://127.0.0.1:9")) == 1
    assert "no server at ws://127.0.0.1:9" in capsys.readouterr().err
