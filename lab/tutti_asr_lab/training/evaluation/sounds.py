"""Phone error rates of a Mandarin network, without language model.

Usage: python -m tutti_asr_lab.training.evaluation.sounds CHECKPOINT --manifest dev-syllables.jsonl

Compares the initials and toned finals of the likeliest path with those of the syllables in a manifest of
`tutti_asr_lab.training.mandarin.speech` (`dev-syllables.jsonl`), with and without tones; in float32, on whole
recordings.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from model import checkpoint
from model.ctc.interface import LogProbs
from model.errors import CheckpointError, ModelError
from model.evaluation.scoring import edit_distance
from model.recordings import Utterance, read_manifest, read_pcm
from model.torch_network.checkpoint import load_network
from tutti_asr_lab.training.evaluation.whole import log_probs_of
from tutti_asr_lab.training.lexicon.pinyin import pronounce

TONES = "12345"


def likeliest(log_probs: LogProbs, phones: Sequence[str]) -> list[str]:
    """Phones of the likeliest path through log-probabilities (T, 1 + phones), blank first."""
    best = log_probs.argmax(axis=1).tolist()
    return [phones[now - 1] for before, now in zip([0, *best], best, strict=False) if now and now != before]


def without_tones(phones: Sequence[str]) -> list[str]:
    """Initials and finals with their tones removed."""
    return [phone.rstrip(TONES) for phone in phones]


def rates(said: Sequence[Utterance], recognized: Sequence[Sequence[str]]) -> Mapping[str, tuple[float, float]]:
    """Phone error rates by source, with and without tones. Raises: ModelError for a text that is not pinyin."""
    spoken = pronounce(sorted({word for utterance in said for word in utterance.text.split()}))
    toned, toneless, wanted = Counter[str](), Counter[str](), Counter[str]()
    for utterance, found in zip(said, recognized, strict=True):
        expected = [phone for word in utterance.text.split() for phone in spoken[word]]
        wanted[utterance.source] += len(expected)
        toned[utterance.source] += edit_distance(expected, found)
        toneless[utterance.source] += edit_distance(without_tones(expected), without_tones(found))
    return {source: (toned[source] / count, toneless[source] / count) for source, count in sorted(wanted.items())}


def measure(path: Path, said: Sequence[Utterance]) -> Mapping[str, tuple[float, float]]:
    """Rates of a checkpoint, whose 8-bit weights are used as floats. Raises: CheckpointError, AudioError."""
    network, _ = load_network(path)
    if not network.config.phones:
        raise CheckpointError(f"{path} has no phone outputs, only letters")
    letters = len(network.config.vocabulary)
    outputs = log_probs_of(network, [read_pcm(u.audio, network.config.sample_rate) for u in said])
    return rates(said, [likeliest(each[:, letters:], network.config.phones) for each in outputs])


def main() -> None:
    """Print the error rates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="a file, or a shipped model's name")
    parser.add_argument("--manifest", type=Path, required=True, help="recordings whose texts are pinyin syllables")
    options = parser.parse_args()
    try:
        found = measure(checkpoint.named(options.checkpoint), read_manifest(options.manifest))
    except (ModelError, OSError) as error:
        sys.exit(f"error: {error}")
    print(f"{'source':20} {'wrong':>6} {'without tones':>14}")  # noqa: T201
    for source, (toned, toneless) in found.items():
        print(f"{source:20} {toned:6.3f} {toneless:14.3f}")  # noqa: T201


if __name__ == "__main__":
    main()
