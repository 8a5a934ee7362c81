"""Recordings: manifests in JSON lines with audio paths relative to their folder, and audio as 16-bit mono PCM."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from model.errors import AudioError, ManifestError
from model.text.files import read_lines

PCM = NDArray[np.int16]
AUDIO_KEYS = ("audio", "audio_filepath")  # ours, and NeMo's
_TEXT_ALIKE = ("sentence", "transcript", "transcription", "reference", "raw_text", "normalized_text", "label", "Text")
_SHOWN = 60  # characters of a value in a message


@dataclass(frozen=True, slots=True)
class Utterance:
    """One recording and its transcript as written in the manifest; `where`: file and line of its manifest entry."""

    audio: Path
    text: str
    source: str
    speaker: str
    duration_s: float
    where: str = field(default="", compare=False)


def read_manifest(path: Path, *, texts: bool = True) -> list[Utterance]:
    """Read one manifest; with `texts`, each row must have one. Raises: ManifestError naming file, line and key."""
    lines = read_lines(path, ManifestError)
    utterances = [_utterance(path, number, line, texts) for number, line in enumerate(lines, 1) if line.strip()]
    if not utterances:
        raise ManifestError(f"{path}: no recordings; a manifest must have a JSON object per line")
    return utterances


def read_manifests(paths: Iterable[Path], *, texts: bool = True) -> list[Utterance]:
    """Read several manifests, in order. Raises: ManifestError."""
    return [utterance for path in paths for utterance in read_manifest(path, texts=texts)]


def _utterance(path: Path, number: int, line: str, texts: bool) -> Utterance:
    where = f"{path}:{number}"
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"{where}: not JSON ({error}): {_shown(line)}") from None
    if not isinstance(row, dict):
        raise ManifestError(f'{where}: not a JSON object, such as {{"audio": …, "text": …}}: {_shown(line)}')
    try:
        return Utterance(
            audio=path.parent / _audio(row),
            text=_text(row, texts),
            source=_name(row, "source", path.stem),
            speaker=_name(row, "speaker", "unknown"),
            duration_s=_seconds(row, "duration"),
            where=where,
        )
    except ValueError as error:
        raise ManifestError(f"{where}: {error}") from None


def _audio(row: Mapping[str, Any]) -> str:
    paths = {key: row[key] for key in AUDIO_KEYS if key in row}
    if not paths:
        raise ValueError(f"audio: missing (or NeMo's audio_filepath); this line has {_keys(row)}")
    for key, value in paths.items():
        if not isinstance(value, str) or not value or "\0" in value:
            raise ValueError(f"{key}: {_shown(value)} is not a path")
    if len(set(paths.values())) > 1:
        raise ValueError("audio and audio_filepath name different files; leave one out")
    if _seconds(row, "offset"):
        raise ValueError(f"offset: {_shown(row['offset'])}: parts of a file are not supported; cut the recording")
    return str(next(iter(paths.values())))


def _text(row: Mapping[str, Any], required: bool) -> str:
    if "text" not in row:
        if not required:
            return ""
        other = next((key for key in _TEXT_ALIKE if key in row), None)
        hint = f"; rename its {other!r} to 'text'" if other else ""
        raise ValueError(f"text: missing; this line has {_keys(row)}{hint}")
    text = row["text"]
    if not isinstance(text, str):
        raise ValueError(f"text: {_shown(text)} is not a string")  # noqa: TRY004 - about the content of a file
    if required and not text.strip():
        raise ValueError("text: empty; write what is said, or leave the line out")
    return text


def _name(row: Mapping[str, Any], key: str, default: str) -> str:
    value = row.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise ValueError(f"{key}: {_shown(value)} is not a string")  # noqa: TRY004 - about the content of a file
    return str(value)


def _seconds(row: Mapping[str, Any], key: str) -> float:
    value = row.get(key, 0.0)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{key}: {_shown(value)} is not a number of seconds")  # noqa: TRY004 - about the content of a file
    try:
        seconds = float(value)
    except OverflowError:
        seconds = math.inf
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ValueError(f"{key}: {_shown(value)} must be a number of seconds, at least 0")
    return seconds


def _keys(row: Mapping[str, Any]) -> str:
    return _shown(", ".join(row), quoted=False) or "no keys"


def _shown(value: object, *, quoted: bool = True) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str) if quoted else str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def check_audio(utterances: Iterable[Utterance]) -> None:
    """Check that each recording exists and has samples, by its header. Raises: ManifestError naming file and line."""
    for utterance in utterances:
        begin = f"{utterance.where}: " if utterance.where else ""
        if not utterance.audio.is_file():
            raise ManifestError(f"{begin}audio: {utterance.audio} does not exist")
        try:
            frames = soundfile.info(utterance.audio).frames
        except (soundfile.LibsndfileError, RuntimeError):
            continue  # reported when it is read
        if not frames:
            raise ManifestError(f"{begin}audio: {utterance.audio} has no samples")


def read_pcm(source: Path | BinaryIO, sample_rate: int = 16_000) -> PCM:
    """Decode wav, flac, ogg or mp3 to mono at `sample_rate`. Returns (S,) int16. Raises: AudioError naming the file."""
    try:
        samples, rate = soundfile.read(source, dtype="float32", always_2d=True)
    except (soundfile.LibsndfileError, OSError, RuntimeError) as error:
        raise AudioError(f"cannot decode {source}: {error}") from error
    if not len(samples):
        raise AudioError(f"{source} has no samples")
    mono = samples.mean(axis=1)  # (S,)
    if rate != sample_rate:
        mono = soxr.resample(mono, rate, sample_rate, quality="HQ")
    return np.asarray(np.clip(np.rint(mono * 32768.0), -32768, 32767), np.int16)
