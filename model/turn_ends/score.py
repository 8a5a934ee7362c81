"""Score of an end of turn: the probability that a pause which has lasted this long is the end. Pure.

The log odds grow linearly with silence, and with the log odds of a turn model's answer where there is one. Below
`RAMP_S`, the shortest pause that was measured, the score rises in a straight line from 0. The score depends neither on
the length of the turn nor on its number of words, which would tell single prompts from pauses but no agent could use.

The constants were fitted to the speakers of part A: docs/voice-agents.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

RAMP_S = 0.2  # of silence: pauses that were measured last at least as long
LEAST = 1e-4  # an answer counts as at least this far from 0 and from 1
EVEN = 0.5  # an answer without effect


@dataclass(frozen=True, slots=True)
class Odds:
    """Log odds of an end: `base + per_s * silence + per_answer * (log odds of the answer)`."""

    base: float
    per_s: float
    per_answer: float = 0.0

    def score(self, silence_s: float, answer: float = EVEN) -> float:
        """Return the score after this silence, from 0 to less than 1."""
        score = _probability(self._at(max(silence_s, RAMP_S), answer))
        return score * min(max(silence_s, 0.0) / RAMP_S, 1.0)

    def delay_s(self, score: float, answer: float = EVEN) -> float:
        """Return the silence after which the score is reached; infinite for 1."""
        if score >= 1.0:
            return math.inf
        at_ramp = self.score(RAMP_S, answer)
        if score <= at_ramp:
            return RAMP_S * score / at_ramp
        return (math.log(score / (1.0 - score)) - self._at(0.0, answer)) / self.per_s

    def _at(self, silence_s: float, answer: float) -> float:
        return self.base + self.per_s * silence_s + self.per_answer * log_odds(answer)


SILENCE = Odds(-1.302, 4.653)
WITH_ANSWER = Odds(-1.662, 4.791, 0.384)


def log_odds(probability: float) -> float:
    """Return the log odds of a probability, within those of `LEAST`."""
    within = min(max(probability, LEAST), 1.0 - LEAST)
    return math.log(within / (1.0 - within))


def score_of(silence_s: float, answer: float | None = None) -> float:
    """Return the score after this silence, from 0 to less than 1; `answer` is the turn model's probability."""
    return SILENCE.score(silence_s) if answer is None else WITH_ANSWER.score(silence_s, answer)


@lru_cache(1024)
def delay_of(score: float, answer: float | None = None) -> float:
    """Return the silence after which the score is reached; infinite for 1."""
    return SILENCE.delay_s(score) if answer is None else WITH_ANSWER.delay_s(score, answer)


def _probability(odds: float) -> float:
    """Return the probability of these log odds, less than 1."""
    return 1.0 / (1.0 + math.exp(-min(odds, 30.0)))
