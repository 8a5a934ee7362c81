"""Streams longer than a recording: recordings in random order with pauses between them, as files with a manifest.

Owns how they are made. A stream that lasts is what a live client is; the shipped recordings are utterances.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray

from loadtest.generator.recordings import shipped_manifest
from loadtest.generator.settings import SAMPLE_RATE
from tutti_asr_client.files.audio import read_pcm

PAUSES_S = (0.1, 1.5)
"""Between two recordings: some are too short for an endpoint, some long enough."""


def compose(recordings: Sequence[NDArray[np.int16]], seconds: float, rng: random.Random) -> NDArray[np.int16]:
    """(S,) int16: recordings in random order with pauses between them, cut at `seconds`."""
    wanted, parts, length = round(seconds * SAMPLE_RATE), list[NDArray[np.int16]](), 0
    while length < wanted:
        pause = np.zeros(round(rng.uniform(*PAUSES_S) * SAMPLE_RATE), np.int16)
        parts += [rng.choice(recordings), pause]
        length += len(parts[-2]) + len(pause)
    return np.concatenate(parts)[:wanted]


def write_streams(folder: Path, lengths_s: Sequence[float], seed: int, manifest: Path | None) -> Path:
    """Write one recording of each length, all different, and return their manifest."""
    source = shipped_manifest() if manifest is None else manifest
    lines = source.read_text(encoding="utf-8").splitlines()
    recordings = [read_pcm(source.parent / json.loads(line)["audio"], SAMPLE_RATE) for line in lines if line.strip()]
    rows = []
    for number, seconds in enumerate(lengths_s):
        pcm = compose(recordings, seconds, random.Random(f"{seed}/{number}"))
        soundfile.write(folder / f"long{number}.flac", pcm, SAMPLE_RATE, subtype="PCM_16")
        rows.append(json.dumps({"audio": f"long{number}.flac", "duration": seconds}))
    path = folder / "long.jsonl"
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path
