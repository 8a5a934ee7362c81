"""Sounds that a Mandarin network gets wrong, without any search.

Usage: python -m model.training.evaluation.sounds CHECKPOINT --manifest dev-syllables.jsonl

Initials and toned finals of the likeliest path, against those of the syllables in a manifest of
`model.training.mandarin.speech` (`dev-syllables.jsonl`), with tones and without; in floats, whole recordings. Knows no
language model and no characters.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from model import checkpoint
from model.ctc.words import LogProbs
from model.errors import CheckpointError, ModelError
from model.evaluation.scoring import edit_distance
from model.recordings import Utterance, read_manifest, read_pcm
from model.torch_network.checkpoint import load_network
from model.training.evaluation.whole import log_probs_of
from model.training.lexicon.pinyin import pronounce

TONES = "12345"


def likeliest(log_probs: LogProbs, sounds: Sequence[str]) -> list[str]:
    """Sounds of the likeliest path through log-probabilities (T, 1 + sounds) with the blank first."""
    best = log_probs.argmax(axis=1).tolist()
    return [sounds[now - 1] for before, now in zip([0, *best], best, strict=False) if now and now != before]


def without_tones(sounds: Sequence[str]) -> list[str]:
    """The same initials and finals, whatever their tones."""
    return [sound.rstrip(TONES) for sound in sounds]


def rates(said: Sequence[Utterance], heard: Sequence[Sequence[str]]) -> Mapping[str, tuple[float, float]]:
    """Shares of wrong sounds by source, with tones and without. Raises: ModelError for texts that are no syllables."""
    spoken = pronounce(sorted({word for utterance in said for word in utterance.text.split()}))
    toned, toneless, wanted = Counter[str](), Counter[str](), Counter[str]()
    for utterance, found in zip(said, heard, strict=True):
        expected = [sound for word in utterance.text.split() for sound in spoken[word]]
        wanted[utterance.source] += len(expected)
        toned[utterance.source] += edit_distance(expected, found)
        toneless[utterance.source] += edit_distance(without_tones(expected), without_tones(found))
    return {source: (toned[source] / count, toneless[source] / count) for source, count in sorted(wanted.items())}


def measure(path: Path, said: Sequence[Utterance]) -> Mapping[str, tuple[float, float]]:
    """Rates of a checkpoint, integers as the floats that they stand for. Raises: CheckpointError, AudioError."""
    network, _ = load_network(path)
    if not network.config.phones:
        raise CheckpointError(f"{path} hears letters alone, no sounds")
    letters = len(network.config.vocabulary)
    outputs = log_probs_of(network, [read_pcm(u.audio, network.config.sample_rate) for u in said])
    return rates(said, [likeliest(each[:, letters:], network.config.phones) for each in outputs])


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="a file, or a shipped model's name")
    parser.add_argument("--manifest", type=Path, required=True, help="recordings whose texts are syllables")
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
