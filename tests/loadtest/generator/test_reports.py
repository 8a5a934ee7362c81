"""Reports and recordings of the load test."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from loadtest.errors import BadManifest, BadSettings
from loadtest.generator.composition import compose
from loadtest.generator.latencies import Latencies
from loadtest.generator.measures import Ending, LevelMeasures, Outcome, ServerFigures, minutes_in
from loadtest.generator.recordings import choose, load, shipped_manifest
from loadtest.generator.settings import parse_streams
from loadtest.measurement.report import faults
from loadtest.measurement.server_metrics import Scrape, figures
from tests.support.clients.loadtest_bench import RECORDINGS, STEPS, T0, recording, settings, write_manifest


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    return write_manifest(tmp_path)


def test_only_the_measured_window_is_counted() -> None:
    measures = LevelMeasures(T0, T0 + 10, {"r": "right"})
    measures.step_answered(T0 - 1, T0 + 5)  # warm-up
    for milliseconds in range(1, 101):
        measures.step_answered(T0 + 1, T0 + 1 + milliseconds * 1e-3)
        measures.covered(0.08, T0 + 1)
    measures.covered(0.08, T0 - 1)
    measures.step_unanswered(T0 + 2, T0 + 4)
    measures.ended(Outcome(recording(), Ending.COMPLETE, text="right"))
    measures.ended(Outcome(recording(), Ending.COMPLETE, text="wrong"))
    measures.ended(Outcome(recording(), Ending.REFUSED, "full"))
    report = measures.report(streams=1, to_s=T0 + 99, policy="p", generator_cpu_cores=0.1, server=ServerFigures())
    assert report.chunk_latency_ms is not None
    assert report.chunk_latency_ms.p50 == pytest.approx(51, rel=0.01)
    assert report.chunk_latency_ms.max == pytest.approx(2000, rel=0.001)
    assert (report.steps, report.unanswered, report.seconds, report.audio_s_per_s) == (101, 1, 10.0, 0.8)
    assert (report.complete, report.compared, report.mismatched, report.refused) == (2, 2, 1, 1)
    assert report.mismatches[0].under_load == "wrong"
    assert report.problems == {"full": 1}
    assert len(faults(report)) == 2


def test_a_level_without_measurements_is_a_fault() -> None:
    measures = LevelMeasures(T0, T0 + 10, {})
    report = measures.report(streams=1, to_s=T0, policy="", generator_cpu_cores=0.0, server=ServerFigures())
    assert report.chunk_latency_ms is None
    assert faults(report) == ["no step was measured"]


def test_a_cdf_ends_at_one() -> None:
    latencies = Latencies()
    for milliseconds in (1, 1, 2, 4):
        latencies.add(milliseconds * 1e-3)
    assert [(round(at), share) for at, share in latencies.cdf()] == [(1, 0.5), (2, 0.75), (4, 1.0)]


def test_recordings_are_cut_into_whole_steps_and_a_remainder(manifest: Path) -> None:
    [first, *_] = load(manifest, level_s=9.0, at_most=9, seed=1)
    assert first.steps == STEPS
    assert [len(message) for message in first.messages] == [2560] * STEPS + [1280]
    assert first.duration_s == pytest.approx(0.36)


def test_short_recordings_are_preferred_and_the_number_is_limited(manifest: Path) -> None:
    lines = [json.dumps({"audio": f"r{n % RECORDINGS}.wav", "duration": 0.36 if n % 2 else 99.0}) for n in range(8)]
    manifest.write_text("\n".join(lines))
    assert len(load(manifest, level_s=9.0, at_most=9, seed=1)) == 4
    assert len(load(manifest, level_s=9.0, at_most=2, seed=1)) == 2
    assert len(load(manifest, level_s=0.1, at_most=3, seed=1)) == 3  # none fits: the shortest


def test_a_recording_that_fits_into_the_remaining_time_is_chosen() -> None:
    pool = [recording(steps, 0.0) for steps in (2, 4, 8)]
    rng = random.Random(1)
    assert {choose(pool, 1.0, rng).steps for _ in range(50)} == {2, 4, 8}
    assert {choose(pool, 0.4, rng).steps for _ in range(50)} == {2, 4}
    assert choose(pool, 0.1, rng).steps == 2


@pytest.mark.parametrize("content", [None, "", "not json", '{"audio": "missing.wav"}'])
def test_an_invalid_manifest_is_named(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "list.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(BadManifest, match=r"list\.jsonl|missing\.wav"):
        load(path, level_s=9.0, at_most=9, seed=1)


def test_the_shipped_recordings_can_be_played() -> None:
    assert shipped_manifest().is_file()
    assert load(None, level_s=20.0, at_most=3, seed=1)


def test_settings_out_of_range_are_rejected() -> None:
    assert parse_streams("10,50") == (10, 50)
    for text in ("ten", "", "1,,2"):
        with pytest.raises(BadSettings):
            parse_streams(text)
    for changes in ({"streams": ()}, {"streams": (0,)}, {"seconds": 0.0}, {"seconds": 1e9}, {"drain_s": 0.0}):
        with pytest.raises(BadSettings):
            settings(Path("m"), **changes)


def test_a_level_of_several_minutes_is_reported_by_minute() -> None:
    measures = LevelMeasures(T0, T0 + 130, {})
    for at_s, latency_s in ((0.0, 0.001), (59.9, 0.001), (60.0, 0.002), (129.9, 0.003)):
        measures.step_answered(T0 + at_s, T0 + at_s + latency_s)
    servers = [ServerFigures(memory_mib=100.0), ServerFigures(memory_mib=101.0)]
    report = measures.report(
        streams=1, to_s=T0 + 130, policy="", generator_cpu_cores=0.0, server=ServerFigures(), by_minute=servers
    )
    spreads = [minute.chunk_latency_ms for minute in report.minutes]
    assert [(s.count, round(s.p50)) for s in spreads if s is not None] == [(2, 1), (1, 2), (1, 3)]
    assert [minute.server.memory_mib for minute in report.minutes] == [100.0, 101.0, None]


@pytest.mark.parametrize(("seconds", "minutes"), [(0.6, 1), (60.0, 1), (60.0000001, 1), (61.0, 2), (600.0, 10)])
def test_rounding_errors_do_not_add_a_minute(seconds: float, minutes: int) -> None:
    assert minutes_in(seconds) == minutes


def test_decode_cores_are_decoding_seconds_per_second() -> None:
    before = Scrape(T0, {"tutti_decode_seconds_sum": 3.0, "process_cpu_seconds_total": 10.0})
    after = Scrape(
        T0 + 20,
        {"tutti_decode_seconds_sum": 4.5, "process_cpu_seconds_total": 22.0, "process_resident_memory_bytes": 2.0**28},
    )
    found = figures(before, after)
    assert (found.decode_cores, found.cpu_cores, found.memory_mib, found.decoder_mib) == (0.075, 0.6, 256.0, None)
    assert figures(after, after).decode_cores is None


def test_long_streams_are_different_sequences_of_recordings_with_pauses() -> None:
    tone = np.full(16_000, 7, np.int16)
    first, again, other = (compose([tone], 10.0, random.Random(seed)) for seed in (1, 1, 2))
    assert len(first) == 160_000
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    edges = np.flatnonzero(np.diff((first != 0).astype(int)))
    runs = np.diff(edges)  # pause, recording, pause, …
    assert set(runs[1::2]) == {16_000}
    assert all(0.1 * 16_000 <= pause <= 1.5 * 16_000 for pause in runs[::2])
