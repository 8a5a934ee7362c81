"""Recordings: manifests in JSON lines, audio paths relative to their folder, and audio as 16-bit mono PCM."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from model.errors import AudioError, ManifestError

PCM = NDArray[np.int16]


@dataclass(frozen=True, slots=True)
class Utterance:
    """One recording and its transcript (lowercase a-z, apostrophe, space)."""

    audio: Path
    text: str
    source: str
    speaker: str
    duration_s: float


def read_manifest(path: Path) -> list[Utterance]:
    """Read one manifest. Raises: ManifestError naming the file and line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ManifestError(f"cannot read manifest {path}: {error.strerror}") from error
    return [_utterance(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]


def read_manifests(paths: Iterable[Path]) -> list[Utterance]:
    """Read several manifests, in order."""
    return [utterance for path in paths for utterance in read_manifest(path)]


def _utterance(path: Path, number: int, line: str) -> Utterance:
    try:
        row = json.loads(line)
        return Utterance(
            audio=path.parent / row["audio"],
            text=row.get("text", ""),
            source=row.get("source", path.stem),
            speaker=row.get("speaker", "unknown"),
            duration_s=float(row.get("duration", 0.0)),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ManifestError(f"{path}:{number}: not a manifest line: {error!r}") from error


def read_pcm(source: Path | BinaryIO, sample_rate: int = 16_000) -> PCM:
    """Decode wav, flac, ogg or mp3, mix down, resample. Returns (S,) int16. Raises: AudioError naming the file."""
    try:
        samples, rate = soundfile.read(source, dtype="float32", always_2d=True)
    except (soundfile.LibsndfileError, OSError, RuntimeError) as error:
        raise AudioError(f"cannot decode {source}: {error}") from error
    mono = samples.mean(axis=1)  # (S,)
    if rate != sample_rate:
        mono = soxr.resample(mono, rate, sample_rate, quality="HQ")
    return np.asarray(np.clip(np.rint(mono * 32768.0), -32768, 32767), np.int16)
