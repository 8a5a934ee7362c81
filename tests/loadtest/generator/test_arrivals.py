"""Arrivals of streams in a level: churn, retries after refusals, fast streams, uploads."""

from __future__ import annotations

import asyncio
import json
import random
import statistics
from pathlib import Path

import pytest

from loadtest.errors import BadSettings
from loadtest.generator.composition import even_lengths_s, exponential_lengths_s
from loadtest.generator.level import RETRY_S, rate_hz, retry_s
from loadtest.generator.measures import LevelMeasures, LevelReport, ServerFigures
from loadtest.generator.playback import Playback
from loadtest.generator.settings import STEP_SAMPLES, Arrivals
from loadtest.generator.uploads import wav
from loadtest.measurement.report import faults
from loadtest.measurement.run import COMPOSED, measure_levels
from tests.support.clients.fake_listen import FakeListen, Plan
from tests.support.clients.loadtest_bench import (
    RECORDINGS,
    T0,
    WITHIN_S,
    recording,
    settings,
    under_load,
    write_manifest,
)
from tutti_asr_client.errors import Refused
from tutti_asr_client.files.audio import read_pcm


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    return write_manifest(tmp_path)


def test_stream_lengths_have_the_given_mean_and_distribution() -> None:
    for lengths_s in (exponential_lengths_s, even_lengths_s):
        found = lengths_s(20.0, 16)
        assert statistics.mean(found) == pytest.approx(20.0)
        assert list(found) == sorted(set(found))
    assert min(even_lengths_s(20.0, 16)) >= 15.0
    many = exponential_lengths_s(1.0, 1_000)
    assert statistics.median(many) == pytest.approx(0.693, rel=0.02)  # ln 2
    assert statistics.pstdev(many) == pytest.approx(1.0, rel=0.05)


def test_arrival_rate_keeps_the_level_by_littles_law() -> None:
    assert rate_hz(280, 20.0) == 14.0


def test_a_refused_client_waits_for_its_retry_after_with_jitter() -> None:
    rng = random.Random(1)
    waits = [retry_s(2.0, rng) for _ in range(100)]
    assert 1.5 <= min(waits) < 1.7
    assert 2.3 < max(waits) <= 2.5
    assert 0.75 * RETRY_S <= retry_s(None, rng) <= 1.25 * RETRY_S


@pytest.mark.parametrize("stream_s", [None, 1.0])
def test_each_stream_requests_the_language_of_its_recordings(manifest: Path, stream_s: float | None) -> None:
    lines = [json.loads(line) for line in manifest.read_text(encoding="utf-8").splitlines()]
    lines[2]["language"] = "zh"
    manifest.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    level, server = under_load(manifest, stream_s=stream_s)
    assert (level.mismatched, level.failed) == (0, 0)
    first_step = read_pcm(manifest.parent / "r2.wav", 16_000)[:STEP_SAMPLES].tobytes()
    sent = [seen for seen in server.connections if seen.audio]
    requested = {(*seen.query.get("language", ["none"]), seen.audio.startswith(first_step)) for seen in sent}
    assert requested == {("zh", True), ("none", False)}


def test_churning_streams_arrive_at_the_rate_of_the_level(manifest: Path) -> None:
    level, server = under_load(manifest, arrivals=Arrivals.CHURN, streams=(6,), seconds=1.5)
    assert faults(level) == []
    assert level.arrivals == "churn"
    came = len(server.connections) - RECORDINGS
    assert came == pytest.approx(6 + 6 / 0.36 * 1.6, abs=14)  # 6 at the start, and 6 per 0.36 s
    assert level.audio_s_per_s == pytest.approx(6, abs=3.5)
    assert level.compared > 0


def test_a_refused_stream_retries_after_its_retry_after(manifest: Path) -> None:
    """One stream is refused with a Retry-After of 2 s; its next recording would follow after 0.36 s."""
    level, server = under_load(
        manifest, lambda number: Plan(refuse=503 if number == 0 else 0), streams=(1,), seconds=2.9, retry=True
    )
    assert level.refused == 1
    assert level.complete + level.cut >= 1
    assert len(server.connections) - RECORDINGS <= 1 + 5  # eight recordings fit into 2.9 s


def test_refusals_are_timed_from_the_connection_attempt_and_missing_retry_after_is_counted(manifest: Path) -> None:
    level, _ = under_load(manifest, lambda number: Plan(refuse=503 if number % 2 else 0))
    assert level.refusals is not None
    assert level.refusals.answer_ms is not None
    assert 0 < level.refusals.answer_ms.max < 500
    assert level.refusals.statuses.keys() == {503}
    assert level.refusals.without_retry_after == 0
    measures = LevelMeasures(T0, T0 + 10, {})
    playback = Playback(recording(), T0, measures)
    playback.dialed(T0 + 0.04)
    playback.refused(Refused(429, None, "quota"), T0 + 0.07)
    report = measures.report(streams=1, to_s=T0 + 10, policy="", generator_cpu_cores=0.0, server=ServerFigures())
    assert report.refusals is not None
    assert report.refusals.answer_ms is not None
    assert report.refusals.answer_ms.max == pytest.approx(30.0, abs=0.01)
    assert (report.refusals.statuses, report.refusals.without_retry_after) == ({429: 1}, 1)


def test_uploads_are_repeated_and_counted(manifest: Path) -> None:
    level, _ = under_load(manifest, uploads=2, streams=(1,))
    assert level.uploads is not None
    assert level.uploads.at_a_time == 2
    assert level.uploads.failed > 0, "this server does not accept uploads"
    assert level.uploads.done == 0
    assert level.failed == 0
    assert wav([recording()], 1.0)[:4] == b"RIFF"


def test_streams_of_a_given_length_are_composed_of_the_recordings(manifest: Path) -> None:
    lines: list[str] = []

    async def main() -> LevelReport:
        async with FakeListen().running() as server:
            asked = settings(manifest, server.url, stream_s=1.0, seconds=2.4)  # a third of 2.4 s is 0.8 s
            return (await measure_levels(asked, progress=lines.append)).document.levels[0]

    level = asyncio.run(asyncio.wait_for(main(), WITHIN_S))
    assert faults(level) == []
    assert level.compared > 0
    assert lines[0] == f"{COMPOSED} recordings, each first without load"


def test_parts_of_the_latency_are_requested_and_reported(manifest: Path) -> None:
    level, server = under_load(manifest, lambda _: Plan(split=True), split=True)
    assert server.connections[-1].query["latency"] == ["true"]
    assert level.handover_ms is not None
    assert level.write_ms is not None
    assert (level.handover_ms.mean, level.write_ms.mean) == pytest.approx((0.25, 0.75), rel=0.01)
    assert level.parts is not None
    assert level.parts.every.handover == pytest.approx(0.25, rel=0.01)
    assert level.parts.slowest.latency >= level.parts.every.latency


@pytest.mark.parametrize("changes", [{"uploads": -1}, {"stream_s": 0.1}, {"level_seconds": (1.0, 2.0)}])
def test_traffic_settings_out_of_range_are_rejected(changes: dict[str, object]) -> None:
    with pytest.raises(BadSettings):
        settings(Path("m"), **changes)
