"""Helpers of the load test's tests: small recordings, their manifest, and settings for a level of half a second."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import soundfile

from loadtest.generator.recordings import Recording
from loadtest.generator.settings import LoadSettings
from tests.support.clients.fake_listen import STEP_S

T0 = 8_675_309.25  # no test depends on where time starts
RECORDINGS = 3
STEPS = 4  # whole steps in each recording, and half a step more
LEVEL_S = 0.6


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


def settings(manifest: Path, url: str = "", **changes: object) -> LoadSettings:
    small = LoadSettings(url=url, streams=(3,), seconds=LEVEL_S, warmup_s=0.1, drain_s=0.4, manifest=manifest)
    return replace(small, **changes)  # type: ignore[arg-type]


def recording(steps: int = 3, rest_s: float = 0.02) -> Recording:
    ends_s = tuple((step + 1) * STEP_S for step in range(steps)) + ((steps * STEP_S + rest_s,) if rest_s else ())
    messages = (b"x",) * len(ends_s)
    return Recording(Path("r"), messages, ends_s, steps, messages)
