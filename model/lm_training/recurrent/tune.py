"""What a recurrent language model counts for: `python -m model.lm_training.recurrent.tune MODEL --manifest M …`.

The texts that accurate finals would choose among are listed once; every weight on a grid chooses from the lists. The
weights with the fewest wrong words on part A are written into the JSON beside the model; part B is shown beside it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from model import checkpoint
from model.acoustic import load_own, load_segment_model
from model.ctc.beam import BeamDecoder
from model.ctc.rescoring import MOST, ngram_scores, texts_of
from model.decoder import accurate_of, decoder_of
from model.errors import ModelError
from model.evaluation.heard import Heard, hear_both
from model.evaluation.parts import selected
from model.evaluation.scoring import edit_distance
from model.lm.recurrent.model import RecurrentLanguageModel
from model.lm_training.recurrent.train import say
from model.machine.compiled import DoubleArray, IntArray
from model.machine.runtime import keep_kernels
from model.recordings import read_manifests
from model.segment_reader import other_of

Weights = tuple[float, float, float]
"""Of the model's log-probability; off that of the n-grams; for a word."""
GRID: tuple[Weights, ...] = (
    (0.0, 0.0, 0.0),
    *product((0.2, 0.3, 0.4, 0.5, 0.6), (0.0, 0.1, 0.2, 0.3, 0.4, 0.5), (0.0, 0.3, 0.6)),
)


@dataclass(frozen=True, slots=True)
class Choice:
    """One recording's texts (N,): wrong words, words, the search's scores, log-probabilities of model and n-grams."""

    words: int  # of the reference
    errors: IntArray
    lengths: IntArray
    scores: DoubleArray
    log_probs: DoubleArray
    ngrams: DoubleArray

    def chosen(self, weights: Weights) -> int:
        """Wrong words of the text that these weights choose."""
        weight, discount, bonus = weights
        scores = self.scores + weight * self.log_probs - discount * self.ngrams + bonus * self.lengths
        return int(self.errors[np.argmax(scores)])


def listed(decoder: BeamDecoder, model: RecurrentLanguageModel, heard: Sequence[Heard]) -> list[Choice]:
    """The texts of each recording, from whole ones."""
    choices = []
    for item in heard:
        state = decoder.start(0)
        decoder.advance([state], item.log_probs[None])
        texts = texts_of(decoder, state, MOST)
        decoder.release(state)
        reference = item.utterance.text.split()
        words = [text for text, _, _ in texts]
        choices.append(
            Choice(
                len(reference),
                np.array([edit_distance(reference, text) for text in words], np.int32),
                np.array([len(text) for text in words], np.int32),
                np.array([score for _, score, _ in texts]),
                model.score(words),
                ngram_scores(decoder, words),
            )
        )
    return choices


def word_error_rate(choices: Sequence[Choice], weights: Weights) -> float:
    """Of the texts that these weights choose, all words pooled."""
    return sum(each.chosen(weights) for each in choices) / sum(each.words for each in choices)


def best(choices: Sequence[Choice]) -> Weights:
    """The weights of the grid that choose the fewest wrong words; of equals the least."""
    return min(GRID, key=lambda weights: (word_error_rate(choices, weights), weights))


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
    for weights in GRID:
        rates = [word_error_rate(choices, weights) for choices in parts.values()]
        say("{:<7} {:<9} {:<7} ".format(*weights) + "  ".join(f"{rate:.4f}" for rate in rates))
    weight, discount, bonus = best(parts["A"])
    least = [sum(int(c.errors.min()) for c in each) / sum(c.words for c in each) for each in parts.values()]
    say(f"taken: {weight} {discount} {bonus}; the best text of each list: A {least[0]:.4f}, B {least[1]:.4f}")
    beside = path.with_suffix(".json")
    described = json.loads(beside.read_text(encoding="utf-8"))
    described |= {"weight": weight, "ngram_discount": discount, "word_bonus": bonus}
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
