"""Composition of long streams: recordings in random order with pauses, written as files with a manifest.

The shipped recordings are single utterances; a live client's stream is longer.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray

from loadtest.generator.recordings import read_manifest
from loadtest.generator.settings import SAMPLE_RATE
from tutti_asr_client.files.audio import read_pcm

PCM = NDArray[np.int16]
PAUSES_S = (0.1, 1.5)
"""Range of pauses between two recordings: some too short for an endpoint, some long enough."""


def exponential_lengths_s(mean_s: float, count: int) -> tuple[float, ...]:
    """Return `count` quantiles of an exponential distribution, scaled to the given mean."""
    quantiles = [-math.log(1 - (number + 0.5) / count) for number in range(count)]
    scale = mean_s * count / sum(quantiles)
    return tuple(scale * quantile for quantile in quantiles)


def even_lengths_s(mean_s: float, count: int) -> tuple[float, ...]:
    """Return `count` lengths from 0.75 to 1.25 times the mean, so that streams do not end together."""
    return tuple(mean_s * (0.75 + 0.5 * (number + 0.5) / count) for number in range(count))


def compose(
    recordings: Sequence[PCM], seconds: float, rng: random.Random, pauses_s: tuple[float, float] = PAUSES_S
) -> PCM:
    """Return recordings in random order with pauses between them, cut at `seconds`: (S,) int16."""
    wanted, parts, length = round(seconds * SAMPLE_RATE), list[PCM](), 0
    while length < wanted:
        pause = np.zeros(round(rng.uniform(*pauses_s) * SAMPLE_RATE), np.int16)
        parts += [rng.choice(recordings), pause]
        length += len(parts[-2]) + len(pause)
    return np.concatenate(parts)[:wanted]


def read_recordings(manifest: Path | None) -> dict[str, list[PCM]]:
    """Return the recordings of each language, (S,) int16. Raises: BadManifest, AudioError."""
    by_language: dict[str, list[PCM]] = {}
    for line in read_manifest(manifest):
        by_language.setdefault(line.language, []).append(read_pcm(Path(line.audio), SAMPLE_RATE))
    return by_language


def write_streams(folder: Path, lengths_s: Sequence[float], seed: int, manifest: Path | None) -> Path:
    """Write one distinct recording of each length and return their manifest. Raises: BadManifest, AudioError.

    Each is in one language; languages alternate.
    """
    recordings, rows = read_recordings(manifest), []
    for number, (seconds, language) in enumerate(zip(lengths_s, cycle(recordings))):
        pcm = compose(recordings[language], seconds, random.Random(f"{seed}/{number}"))
        soundfile.write(folder / f"long{number}.flac", pcm, SAMPLE_RATE, subtype="PCM_16")
        rows.append(json.dumps({"audio": f"long{number}.flac", "duration": seconds, "language": language}))
    path = folder / "long.jsonl"
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path
