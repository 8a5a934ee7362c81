"""Tuning of decoding weights on recordings: the acoustic model runs once, its outputs are decoded many times.

Random search around the best weights so far, in decreasing steps. Its error rates are optimistic, because they are
measured on the tuning set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Literal

import numpy as np

from model.acoustic import load_own
from model.attention_config import OwnConfig
from model.ctc.beam import BeamDecoder
from model.ctc.interface import Decoder
from model.ctc.weights import DecodingWeights
from model.decoder import Language, language_model_path, own_search, weights_path
from model.errors import ModelError
from model.evaluation.scoring import Score
from model.recordings import Utterance
from tutti_asr_lab.training.evaluation.outputs import RecordingOutput, decode, outputs_of

Objective = Literal["mean", "pooled"]
MakeDecoder = Callable[[DecodingWeights], Decoder]

# Ranges of the searched weights. `keyterm_boost` is not searched: this would need recordings with key terms.
RANGES = {
    "lm_weight": (0.0, 2.0),
    "word_bonus": (-2.0, 4.0),
    "unknown_cost": (0.0, 16.0),
    "unknown_letter_cost": (0.0, 6.0),
    "blank_penalty": (0.0, 3.0),
}
_FIRST_STEP, _LAST_STEP = 0.4, 0.04  # fractions of the range
_EXPLORED = 0.25  # fraction of the trials that are drawn from the whole ranges


@dataclass(frozen=True, slots=True)
class Trial:
    """Decoding weights and their scores by source."""

    weights: DecodingWeights
    sources: dict[str, Score]

    def loss(self, objective: Objective) -> tuple[float, float]:
        """Word error rate, pooled or as the mean of the sources, then character error rate to break ties."""
        if objective == "mean":
            scores = self.sources.values()
            return float(np.mean([s.wer for s in scores])), float(np.mean([s.cer for s in scores]))
        total = sum(self.sources.values(), Score())
        return total.wer, total.cer


@dataclass(frozen=True, slots=True)
class TunedSearch:
    """A beam search whose weights are tuned: an acoustic model, a language model, and the file of their weights."""

    config: OwnConfig
    language: Language
    weights_file: Path
    outputs_of: Callable[[Sequence[Utterance]], list[RecordingOutput]]
    """Runs the acoustic model over recordings. Raises: AudioError."""

    @classmethod
    def load(cls, model: Path | None, lm: Path | None, *, precision: str) -> TunedSearch:
        """Load the models, None for the shipped ones. Raises: ModelError."""
        acoustic = load_own(model, precision=precision, threads=0)
        config, compute = acoustic.facts.own_config, partial(outputs_of, acoustic)
        path = language_model_path(lm, config.language)
        if path is None:
            raise ModelError(f"--lm: no language model is shipped for {config.language!r}; give one")
        tuned_for = config.trained_name, config.architecture
        language = Language.load(path, config.phones, config.language, tuned_for)
        file = weights_path(path, config.phones, config.trained_name if lm is None else "")
        return cls(config, language, file, compute)

    def decoder(self, beams: int | None, weights: DecodingWeights) -> BeamDecoder:
        """Return the search with these weights."""
        return own_search(self.config, beams, replace(self.language, weights=weights))


def search(
    outputs: Sequence[RecordingOutput],
    make_decoder: MakeDecoder,
    start: DecodingWeights,
    trials: int,
    objective: Objective,
    *,
    executor: Executor,
    seed: int = 1,
    report: Callable[[Trial], None] = lambda _: None,
) -> list[Trial]:
    """Try `start` and `trials - 1` other weights; return all trials, the best first."""
    rng = Random(seed)
    done: list[Trial] = []
    best = start
    for number in range(trials):
        weights = start if not number else propose(best, number / trials, rng)
        trial = Trial(weights, decode(make_decoder(weights), outputs, executor))
        done.append(trial)
        done.sort(key=lambda each: each.loss(objective))
        best = done[0].weights
        if done[0] is trial:
            report(trial)
    return done


def propose(best: DecodingWeights, progress: float, rng: Random) -> DecodingWeights:
    """Propose weights: early on, drawn from the whole ranges; later, the best with one or two of them changed."""
    if progress < _EXPLORED:
        return replace(best, **{name: round(rng.uniform(*ends), 3) for name, ends in RANGES.items()})
    late = (progress - _EXPLORED) / (1 - _EXPLORED)
    step = _FIRST_STEP * (_LAST_STEP / _FIRST_STEP) ** late
    changed: dict[str, float] = {}
    for name in rng.sample(sorted(RANGES), rng.randint(1, 2)):
        low, high = RANGES[name]
        value = getattr(best, name) + rng.gauss(0.0, step / 2) * (high - low)
        changed[name] = round(min(max(value, low), high), 3)
    return replace(best, **changed)
