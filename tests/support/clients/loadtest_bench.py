"""Helpers of the load test's tests: small recordings, their manifest, and settings for a level of half a second."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import soundfile

from loadtest.generator.latencies import Latencies
from loadtest.generator.measures import LevelMeasures, LevelReport, ServerFigures
from loadtest.generator.recordings import Recording
from loadtest.generator.settings import LoadSettings
from loadtest.measurement.run import measure_levels
from tests.support.clients.fake_listen import STEP_S, FakeListen, Plan

T0 = 8_675_309.25  # no test depends on where time starts
RECORDINGS = 3
STEPS = 4  # whole steps in each recording, and half a step more
LEVEL_S = 0.6
WITHIN_S = 15.0


def write_manifest(folder: Path) -> Path:
    """Three recordings of 0.36 s, all different."""
    rng = np.random.default_rng(3)
    lines = []
    for number in range(RECORDINGS):
        samples = rng.integers(-9000, 9000, round((STEPS + 0.5) * STEP_S * 16000), dtype=np.int16)
        soundfile.write(folder / f"r{number}.wav", samples, 16000)
        lines.append(json.dumps({"audio": f"r{number}.wav", "text": "unused"}))
    path = folder / "manifest.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def level_report(*latencies_s: float, **changes: object) -> LevelReport:
    """Report of a level with one answered step in each minute, of that latency, and five compared transcripts."""
    servers = [ServerFigures()] * len(latencies_s)
    return level_by_period(latencies_s, servers, **({"streams": 3, "compared": 5} | changes))[0]


def level_by_period(
    latencies_s: Sequence[float],
    servers: Sequence[ServerFigures],
    *,
    period_s: float = 60.0,
    steps: int = 1,
    **changes: object,
) -> tuple[LevelReport, tuple[Latencies, ...]]:
    """Return a level with these latencies of all steps of a period and figures at its end, and those by period."""
    end_s = T0 + period_s * len(latencies_s)
    measures = LevelMeasures(T0, end_s, {}, period_s=period_s)
    for period, latency_s in enumerate(latencies_s):
        due_s = T0 + period_s * (period + 0.5)
        for _ in range(steps):
            measures.step_answered(due_s, due_s + latency_s)
    report = measures.report(
        streams=0, to_s=end_s, policy="", generator_cpu_cores=0.1, server=ServerFigures(), by_minute=servers
    )
    return msgspec.structs.replace(report, **changes), measures.minutes


def settings(manifest: Path, url: str = "", **changes: object) -> LoadSettings:
    small = LoadSettings(url=url, streams=(3,), seconds=LEVEL_S, warmup_s=0.1, drain_s=0.4, manifest=manifest)
    return replace(small, **changes)  # type: ignore[arg-type]


def under_load(
    manifest: Path, plan: Callable[[int], Plan] = lambda _: Plan(), **changes: object
) -> tuple[LevelReport, FakeListen]:
    """Measure one level; `plan` applies to connections numbered after those of the reference pass."""

    async def main() -> tuple[LevelReport, FakeListen]:
        after_reference = FakeListen(lambda number: plan(number - RECORDINGS) if number >= RECORDINGS else Plan())
        async with after_reference.running() as server:
            result = await measure_levels(settings(manifest, server.url, **changes), progress=lambda _: None)
        [level] = result.document.levels
        return level, server

    return asyncio.run(asyncio.wait_for(main(), WITHIN_S))


def recording(steps: int = 3, rest_s: float = 0.02) -> Recording:
    ends_s = tuple((step + 1) * STEP_S for step in range(steps)) + ((steps * STEP_S + rest_s,) if rest_s else ())
    messages = (b"x",) * len(ends_s)
    return Recording(Path("r"), messages, ends_s, steps, messages)
