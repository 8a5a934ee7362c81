"""Converts recordings to other voices.

Usage: `python -m tutti_asr_lab.training.synthesis.voice_conversion MANIFEST… --out DIR`.

The WORLD vocoder (Morise et al. 2016) analyzes speech into pitch, spectral envelope and aperiodicity; pitch and
envelope are shifted to a speaker of another size, and the speech is synthesized again, faster or slower. This turns a
few careful readers into many speakers at a natural speed and preserves tones; single words can be joined into longer
recordings. Owns the choice of voices and the files.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray
from rich.progress import track

from model.checkpoint import write_atomically
from model.errors import AudioError, ManifestError, ModelError, install_hint
from model.recordings import Utterance, read_manifest, read_pcm
from tutti_asr_lab.training.synthesis.synthesize import leave_interrupts_to_parent

Floats = NDArray[np.float64]

SAMPLE_RATE_HZ = 16_000
# Range of median pitch of adults: from low male to high female voices.
PITCH_HZ = (85.0, 280.0)
# The vocal tract is a fifth longer at the low end than at the high end; the spread is that of speakers of one pitch.
_TRACT_RANGE = 0.20
_TRACT_SPREAD = 0.04
_LIVELINESS = (0.8, 1.25)  # exponent of the pitch relative to its median
_FRAME_MS = 5.0  # of the analysis
_SILENT = 0.03  # fraction of the peak below which audio counts as silence at the ends of joined recordings
_SEARCHED_HZ = (60.0, 600.0)


@dataclass(frozen=True, slots=True)
class Target:
    """Target voice: median pitch in hertz; factors on formant frequencies, on pitch movement and on tempo."""

    pitch_hz: float
    formants: float = 1.0
    liveliness: float = 1.0
    tempo: float = 1.0

    @classmethod
    def drawn(cls, pitch_hz: float, tempo: tuple[float, float], rng: Random) -> Target:
        """Draw a voice for a speaker with the median pitch `pitch_hz`, with a tempo in the given range."""
        low, high = PITCH_HZ
        wanted = low * (high / low) ** rng.random()
        size = np.log(wanted / pitch_hz) / np.log(high / low)  # -1: from the highest voice to the lowest
        formants = float(np.exp(_TRACT_RANGE * size + rng.uniform(-_TRACT_SPREAD, _TRACT_SPREAD)))
        return cls(wanted, formants, rng.uniform(*_LIVELINESS), rng.uniform(*tempo))


def convert(samples: Floats, target: Target) -> Floats:
    """Convert speech (S,) to another voice, (S / tempo,); unchanged if it has no voiced part."""
    pyworld = _world()
    pitch, times = pyworld.dio(samples, SAMPLE_RATE_HZ, _SEARCHED_HZ[0], _SEARCHED_HZ[1], frame_period=_FRAME_MS)
    pitch = pyworld.stonemask(samples, pitch, times, SAMPLE_RATE_HZ)  # (T,) hertz, 0 where there is none
    voiced = pitch > 0
    if not voiced.any():
        return samples
    median = np.median(pitch[voiced])
    envelope = pyworld.cheaptrick(samples, pitch, times, SAMPLE_RATE_HZ)  # (T, F)
    noise = pyworld.d4c(samples, pitch, times, SAMPLE_RATE_HZ)  # (T, F)
    moved = np.where(voiced, target.pitch_hz * (np.maximum(pitch, 1.0) / median) ** target.liveliness, 0.0)
    spectra = (stretched(envelope, target.formants), stretched(noise, target.formants))
    spoken = np.asarray(pyworld.synthesize(moved, *spectra, SAMPLE_RATE_HZ, _FRAME_MS / target.tempo), np.float64)
    made = spoken[: round(len(samples) / target.tempo)]
    peak, before = np.abs(made).max(), np.abs(samples).max()
    return made * (before / peak if peak > 0 else 1.0)


def stretched(spectra: Floats, factor: float) -> Floats:
    """Scale the frequency axis of spectra (T, F) by a factor, with interpolation of logarithms."""
    bins = spectra.shape[1]
    places = np.minimum(np.arange(bins) / factor, bins - 1)
    below = places.astype(np.int64)
    above, share = np.minimum(below + 1, bins - 1), places - below
    logs = np.log(spectra + 1e-16)
    return np.ascontiguousarray(np.exp(logs[:, below] * (1 - share) + logs[:, above] * share))


def median_pitch(recordings: Sequence[Path]) -> float | None:
    """Median pitch in hertz of recordings of one speaker, None without any voiced part. Raises: AudioError."""
    pyworld, found = _world(), []
    for path in recordings:
        samples = _samples(path)
        pitch, _ = pyworld.dio(samples, SAMPLE_RATE_HZ, f0_floor=_SEARCHED_HZ[0], f0_ceil=_SEARCHED_HZ[1])
        found.extend(pitch[pitch > 0].tolist())
    return float(np.median(found)) if found else None


@dataclass(frozen=True, slots=True)
class Options:
    """Voices per recording, range of tempo factors, most recordings of a speaker to join into one, and the seed."""

    times: int = 1
    tempo: tuple[float, float] = (1.0, 1.0)
    joined: int = 1
    seed: int = 1

    def __post_init__(self) -> None:
        """Check the values. Raises: ValueError."""
        if self.times < 1 or self.joined < 1:
            raise ValueError(f"--times {self.times}, --joined {self.joined}: both must be at least 1")
        if not 0 < self.tempo[0] <= self.tempo[1]:
            raise ValueError(
                f"--tempo {self.tempo[0]:g},{self.tempo[1]:g}: must be two factors above 0, the lower one first"
            )


@dataclass(frozen=True, slots=True)
class Conversion:
    """File to be written: its recordings and its voice."""

    utterances: tuple[Utterance, ...]
    target: Target
    audio: str  # relative to the folder


def plan(utterances: Sequence[Utterance], options: Options) -> Iterator[Conversion]:
    """Yield each recording `times` times, each in another voice; speakers without voiced speech are skipped."""
    spoken: dict[tuple[str, str], list[Utterance]] = {}
    for utterance in utterances:
        spoken.setdefault((utterance.source, utterance.speaker), []).append(utterance)
    sample, rng = Random(f"{options.seed}/pitch"), Random(f"{options.seed}/voices")
    for speaker, said in enumerate(spoken.values()):
        pitch_hz = median_pitch([u.audio for u in sample.sample(said, min(len(said), 8))])
        if pitch_hz is None:
            continue
        for turn in range(options.times):
            for number, together in enumerate(_in_groups(said, options.joined, rng)):
                name = f"{speaker:03d}-{turn}-{number // 1000:02d}/{number:06d}.flac"
                yield Conversion(together, Target.drawn(pitch_hz, options.tempo, rng), name)


def _in_groups(said: Sequence[Utterance], most: int, rng: Random) -> Iterator[tuple[Utterance, ...]]:
    """Recordings of a speaker in groups of 1 to `most`; shuffled unless `most` is 1."""
    order = list(said) if most == 1 else rng.sample(said, len(said))
    while order:
        size = rng.randint(1, most)
        yield tuple(order[:size])
        del order[:size]


def convert_all(utterances: Sequence[Utterance], out: Path, options: Options, jobs: int) -> Path:
    """Write all conversions and return the manifest; the same seed gives the same voices for any number of processes.

    Raises: AudioError for a recording that cannot be read, or if none has voiced speech.
    """
    out.mkdir(parents=True, exist_ok=True)
    wanted = list(plan(utterances, options))
    if not wanted:
        raise AudioError(f"none of {len(utterances)} recordings has voiced speech, so no voice can be converted")
    for folder in {(out / each.audio).parent for each in wanted}:
        folder.mkdir(exist_ok=True)
    # A fork of a process with threads may deadlock.
    pool = ProcessPoolExecutor(jobs, get_context("forkserver"), initializer=leave_interrupts_to_parent)
    try:
        lengths = pool.map(partial(_write, out), wanted, chunksize=16)
        pairs = track(zip(wanted, lengths, strict=True), "converting", total=len(wanted))
        rows = [json.dumps(_row(each, seconds), ensure_ascii=False) for each, seconds in pairs]
    finally:
        pool.shutdown(cancel_futures=True)
    manifest = out / "converted.jsonl"  # written last, so that it exists only if all files do
    write_atomically(manifest, ("\n".join(rows) + "\n").encode())
    return manifest


def without_silence(samples: Floats) -> Floats:
    """Trim silence before speech to 20 ms and after it to 40 ms: (S,) -> (S',)."""
    block = SAMPLE_RATE_HZ // 100
    loud = np.flatnonzero(np.abs(samples) > _SILENT * np.abs(samples).max(initial=0.0))
    if not len(loud):
        return samples
    return samples[max(int(loud[0]) - 2 * block, 0) : int(loud[-1]) + 4 * block]


def _world() -> Any:
    try:
        import pyworld
    except ImportError as error:
        raise ModelError(f"voice conversion needs the optional package pyworld: {install_hint('mandarin')}") from error
    return pyworld


def _samples(path: Path) -> Floats:
    return read_pcm(path, SAMPLE_RATE_HZ).astype(np.float64) / 32768.0


def _write(out: Path, conversion: Conversion) -> float:
    parts = [_samples(utterance.audio) for utterance in conversion.utterances]
    whole = parts[0] if len(parts) == 1 else np.concatenate([without_silence(part) for part in parts])
    made = convert(whole, conversion.target)
    soundfile.write(out / conversion.audio, np.clip(made, -1.0, 1.0), SAMPLE_RATE_HZ, subtype="PCM_16")
    return len(made) / SAMPLE_RATE_HZ


def _row(conversion: Conversion, seconds: float) -> dict[str, str | float]:
    said, target = conversion.utterances[0], conversion.target
    return {
        "audio": conversion.audio,
        "text": " ".join(utterance.text for utterance in conversion.utterances),
        "speaker": f"{said.speaker}-{target.pitch_hz:.0f}hz-{target.formants:.2f}",
        "source": f"{said.source}_converted",
        "duration": round(seconds, 3),
        "origin": said.source,
    }


def _tempo(text: str) -> tuple[float, float]:
    low, _, high = text.partition(",")
    return float(low), float(high)


def main() -> None:
    """Convert the recordings of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("manifests", nargs="+", type=Path, help="manifests with texts and speakers")
    parser.add_argument("--out", type=Path, required=True, help="folder for the recordings and converted.jsonl")
    parser.add_argument("--times", type=int, default=1, help="voices per recording")
    parser.add_argument(
        "--tempo", type=_tempo, default=(1.0, 1.0), help="LOW,HIGH: range of speed factors; for careful readers 1,1.6"
    )
    parser.add_argument("--joined", type=int, default=1, help="most recordings of a speaker to join; for single words")
    parser.add_argument("--seed", type=int, default=1, help="seed of the voices")
    parser.add_argument("--jobs", type=int, default=2, help="number of processes")
    options = parser.parse_args()
    try:
        utterances = [u for path in options.manifests for u in read_manifest(path)]
        if not utterances:
            raise ManifestError("the manifests have no recordings")
        wanted = Options(options.times, options.tempo, options.joined, options.seed)
        made = convert_all(utterances, options.out, wanted, options.jobs)
    except (ModelError, OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("interrupted: converted.jsonl was not written; run the same command again")
    print(made)  # noqa: T201


if __name__ == "__main__":
    main()
