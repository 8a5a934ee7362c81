"""A model that takes one letter for another, which key terms correct."""

from __future__ import annotations

import numpy as np

from model.config import ENGLISH
from tests.support.servers.recognizers.array_slots import Array, State
from tests.support.servers.recognizers.spelling import SpellingModel, silence, spell

Q, K = ENGLISH.index("q"), ENGLISH.index("k")
AUDIO = np.concatenate([spell("the qite flew "), silence(1.0)])  # "kite", as this model recognizes it


class MishearingModel(SpellingModel):
    """A spelling model that also gives "k" some probability for "q"."""

    def step(self, inputs: Array, state: State) -> tuple[Array, State]:
        log_probs, state = super().step(inputs, state)
        q = log_probs[:, :, Q] > -1  # (B, frames_per_step)
        log_probs[:, :, Q] = np.where(q, np.log(0.6), log_probs[:, :, Q])
        log_probs[:, :, K] = np.where(q, np.log(0.39), log_probs[:, :, K])
        return log_probs, state
