"""Digest of an 8-bit model's log-probabilities on the sample recordings, equal on every processor.

For the network that writes finished segments: of the symbols and log-probabilities that it has for the recordings.
`python -m model.evaluation.digest` prints the digest of the shipped model, or of `--model`; the expected values are in
`LOG_PROBS_SHA256` in the folder of the shipped weights. Knows nothing about the server.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray

from model import checkpoint
from model.acoustic import load_own, log_probs_of
from model.errors import ModelError
from model.facts import AcousticModel
from model.moonshine import model as moonshine
from model.recordings import PCM, read_manifest, read_pcm

SAMPLES = checkpoint.WEIGHTS.parent / "samples" / "samples.jsonl"
COMMITTED = "LOG_PROBS_SHA256"
"""Name of the file with the shipped models' digests, in the folder of the weights; lines as `main` prints them."""


def sample_recordings(sample_rate: int) -> list[PCM]:
    """Shipped recordings of this sample rate, (S,) int16 each, in the order of their manifest.

    Recordings of other rates are left out: the resampler's order of summation depends on the processor.
    """
    paths = [utterance.audio for utterance in read_manifest(SAMPLES)]
    return [read_pcm(path, sample_rate) for path in paths if soundfile.info(path).samplerate == sample_rate]


def digest_of(log_probs: Sequence[NDArray[np.float32]]) -> str:
    """SHA-256 of the bits of all log-probabilities, (T, V) each, one recording after another."""
    digest = hashlib.sha256()
    for log_prob in log_probs:
        digest.update(np.ascontiguousarray(log_prob, "<f4").tobytes())
    return digest.hexdigest()


def log_probs_digest(model: AcousticModel) -> str:
    """Digest of a model's log-probabilities on the sample recordings."""
    return digest_of(log_probs_of(model, sample_recordings(model.config.sample_rate)))


def readings_digest(network: moonshine.Moonshine) -> str:
    """Digest of the symbols that the network writes for each sample recording, and of their log-probability."""
    readings = [network.read(pcm) for pcm in sample_recordings(moonshine.SAMPLE_RATE)]
    return hashlib.sha256(repr([(one.symbols, one.log_prob.hex()) for one in readings]).encode()).hexdigest()


def committed_digest(name: str = checkpoint.SHIPPED.name) -> str | None:
    """Expected digest of a shipped checkpoint, None if unknown."""
    try:
        rows = (checkpoint.WEIGHTS / COMMITTED).read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((digest for digest, _, model in (row.partition("  ") for row in rows) if model == name), None)


def main() -> None:
    """Print the digest and the checkpoint's name."""
    parser = argparse.ArgumentParser(prog="python -m model.evaluation.digest", description=__doc__)
    parser.add_argument("--model", type=Path, default=checkpoint.SHIPPED, help="A checkpoint with 8-bit weights.")
    path = parser.parse_args().model
    try:
        found, name = _digest_at(path), checkpoint.named(path).name
    except ModelError as error:
        sys.exit(f"digest: {error}")
    print(f"{found}  {name}")  # noqa: T201


def _digest_at(path: Path) -> str:
    if path.name == moonshine.SHIPPED.name:
        return readings_digest(moonshine.Moonshine.load(path))
    return log_probs_digest(load_own(path, device="cpu", precision="int8"))


if __name__ == "__main__":
    main()
