"""Tunes the weights of a recurrent language model in the score of a text.

Usage: `python -m model.training.language_model.recurrent.tune MODEL --manifest M …`.

The texts that accurate finals would choose among are listed once; every weight on a grid chooses from the lists. The
weights with the fewest wrong words on part A are written into the JSON beside the model; part B is shown beside it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from itertools import product, starmap
from pathlib import Path

import numpy as np

from model import checkpoint
from model.acoustic import load_own, load_segment_model
from model.ctc.beam import BeamDecoder
from model.ctc.rescoring import MOST, Scores, scores_of, texts_of
from model.decoder import accurate_of, decoder_of
from model.errors import ModelError
from model.evaluation.parts import selected
from model.evaluation.scoring import edit_distance
from model.lm.recurrent.model import RecurrentLanguageModel
from model.lm.text_model import Counts
from model.machine.compiled import IntArray
from model.machine.runtime import keep_kernels
from model.recordings import read_manifests
from model.segment_model import other_of
from model.training.evaluation.heard import Heard, hear_both
from model.training.language_model.recurrent.train import say

GRID = (
    Counts(),
    *starmap(Counts, product((0.2, 0.3, 0.4, 0.5, 0.6), (0.0, 0.1, 0.2, 0.3, 0.4, 0.5), (0.0, 0.3, 0.6))),
)


@dataclass(frozen=True, slots=True)
class Choice:
    """One recording's texts (N,): their wrong words and their scores."""

    words: int  # of the reference
    errors: IntArray
    scores: Scores

    def chosen(self, counts: Counts) -> int:
        """Wrong words of the text that is chosen where a model counts for so much."""
        return int(self.errors[self.scores.best(counts)])


def listed(decoder: BeamDecoder, model: RecurrentLanguageModel, heard: Sequence[Heard]) -> list[Choice]:
    """The texts of each recording, from whole ones."""
    choices = []
    for item in heard:
        state = decoder.start(0)
        decoder.advance([state], item.log_probs[None])
        texts = texts_of(decoder, state, MOST)
        decoder.release(state)
        reference = item.utterance.text.split()
        errors = np.array([edit_distance(reference, words) for words, _, _ in texts], np.int32)
        choices.append(Choice(len(reference), errors, scores_of(decoder, texts, model)))
    return choices


def word_error_rate(choices: Sequence[Choice], counts: Counts) -> float:
    """Of the texts that are chosen, all words pooled."""
    return sum(each.chosen(counts) for each in choices) / sum(each.words for each in choices)


def best(choices: Sequence[Choice]) -> Counts:
    """The point of the grid that chooses the fewest wrong words; of equals the least."""
    return min(GRID, key=lambda counts: (word_error_rate(choices, counts), counts))


def tune(path: Path, manifests: Sequence[Path]) -> None:
    """Write the best weights beside a model; show them all. Raises: ModelError, OSError."""
    keep_kernels()
    model = RecurrentLanguageModel.load(path)
    acoustic = load_own(device="cpu", precision="int8", threads=0)
    accurate, other = accurate_of(acoustic, decoder_of(acoustic)), other_of(acoustic.config)
    if accurate is None or other is None:
        raise ModelError(f"no shipped model reads the segments of {acoustic.config.name}")
    utterances, reader = read_manifests(manifests), load_segment_model(other[0])
    parts = {
        part: listed(accurate.second, model, hear_both(acoustic, reader, selected(utterances, part)))
        for part in ("A", "B")
    }
    say("weight  discount  bonus   A       B")
    for counts in GRID:
        rates = [word_error_rate(choices, counts) for choices in parts.values()]
        say("{:<7} {:<9} {:<7} ".format(*astuple(counts)) + "  ".join(f"{rate:.4f}" for rate in rates))
    taken = best(parts["A"])
    least = [sum(int(c.errors.min()) for c in each) / sum(c.words for c in each) for each in parts.values()]
    say(f"taken: {astuple(taken)}; the best text of each list: A {least[0]:.4f}, B {least[1]:.4f}")
    beside = path.with_suffix(".json")
    described = json.loads(beside.read_text(encoding="utf-8"))
    described |= asdict(taken)
    checkpoint.write_atomically(beside, json.dumps(described, indent=1).encode())


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="in 8 bits, as `quantize` writes it")
    parser.add_argument("--manifest", type=Path, action="append", required=True, help="recordings; repeatable")
    options = parser.parse_args()
    try:
        tune(options.model, options.manifest)
    except (OSError, ModelError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
