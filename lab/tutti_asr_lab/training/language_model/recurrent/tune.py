"""Tunes the rescoring weights of a recurrent language model.

Usage: `python -m tutti_asr_lab.training.language_model.recurrent.tune MODEL --manifest M …`.

The candidate texts of accurate finals are computed once; all weights of a grid rescore them. The weights with the
fewest word errors on part A are written to the JSON file next to the model; rates of part B are printed too.
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
from tutti_asr_lab.training.evaluation.outputs import RecordingOutput, mean_outputs_of
from tutti_asr_lab.training.language_model.recurrent.train import say

GRID = (
    Counts(),
    *starmap(Counts, product((0.2, 0.3, 0.4, 0.5, 0.6), (0.0, 0.1, 0.2, 0.3, 0.4, 0.5), (0.0, 0.3, 0.6))),
)


@dataclass(frozen=True, slots=True)
class Choice:
    """Candidate texts (N,) of one recording: their word errors and scores."""

    words: int  # number of words of the reference
    errors: IntArray
    scores: Scores

    def chosen(self, counts: Counts) -> int:
        """Word errors of the best text with these rescoring weights."""
        return int(self.errors[self.scores.best(counts)])


def listed(decoder: BeamDecoder, model: RecurrentLanguageModel, outputs: Sequence[RecordingOutput]) -> list[Choice]:
    """Candidate texts of each recording, decoded as one segment."""
    choices = []
    for item in outputs:
        state = decoder.start(0)
        decoder.advance([state], item.log_probs[None])
        texts = texts_of(decoder, state, MOST)
        decoder.release(state)
        reference = item.utterance.text.split()
        errors = np.array([edit_distance(reference, words) for words, _, _ in texts], np.int32)
        choices.append(Choice(len(reference), errors, scores_of(decoder, texts, model)))
    return choices


def word_error_rate(choices: Sequence[Choice], counts: Counts) -> float:
    """Word error rate of the best texts with these rescoring weights, pooled over all words."""
    return sum(each.chosen(counts) for each in choices) / sum(each.words for each in choices)


def best(choices: Sequence[Choice]) -> Counts:
    """Weights of the grid with the fewest word errors; of equally good ones, the smallest."""
    return min(GRID, key=lambda counts: (word_error_rate(choices, counts), counts))


def tune(path: Path, manifests: Sequence[Path]) -> None:
    """Write the best weights to the model's JSON file; print all. Raises: ModelError, OSError."""
    keep_kernels()
    model = RecurrentLanguageModel.load(path)
    acoustic = load_own(device="cpu", precision="int8", threads=0)
    accurate, other = accurate_of(acoustic.facts, decoder_of(acoustic.facts)), other_of(acoustic.facts.own_config)
    if accurate is None or other is None:
        raise ModelError(f"no shipped model can serve as the second pass of {acoustic.config.name}")
    utterances, second = read_manifests(manifests), load_segment_model(other[0])
    parts = {
        part: listed(accurate.second, model, mean_outputs_of(acoustic, second, selected(utterances, part)))
        for part in ("A", "B")
    }
    say("weight  discount  bonus   A       B")
    for counts in GRID:
        rates = [word_error_rate(choices, counts) for choices in parts.values()]
        say("{:<7} {:<9} {:<7} ".format(*astuple(counts)) + "  ".join(f"{rate:.4f}" for rate in rates))
    taken = best(parts["A"])
    least = [sum(int(c.errors.min()) for c in each) / sum(c.words for c in each) for each in parts.values()]
    say(f"chosen: {astuple(taken)}; error rate of the best candidates: A {least[0]:.4f}, B {least[1]:.4f}")
    description = path.with_suffix(".json")
    described = json.loads(description.read_text(encoding="utf-8"))
    described |= asdict(taken)
    checkpoint.write_atomically(description, json.dumps(described, indent=1).encode())


def main() -> None:
    """Tune a model with the recordings of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="8-bit model written by `quantize`")
    parser.add_argument("--manifest", type=Path, action="append", required=True, help="recordings; repeatable")
    options = parser.parse_args()
    try:
        tune(options.model, options.manifest)
    except (OSError, ModelError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
