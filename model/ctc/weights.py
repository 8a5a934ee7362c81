"""Weights of language model, words and key terms relative to the acoustic model."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path

from model.errors import ModelError
from model.text.files import read_text

LARGEST = 1e6  # keeps the sum over a long text far below the largest double


@dataclass(frozen=True, slots=True)
class DecodingWeights:
    """Decoding weights. Scores are natural logarithms; the acoustic model has weight 1.

    A word of the vocabulary scores `lm_weight` times its log-probability; any other word costs `unknown_cost` plus
    `unknown_letter_cost` per letter; every word scores `word_bonus`. Each letter of a key term scores `keyterm_boost`
    times the weight of the key term. The blank costs `blank_penalty` per frame, because a network that overestimates
    blanks deletes symbols. `tutti lm tune` finds the weights for a given model.
    """

    lm_weight: float = 0.5
    word_bonus: float = -0.5
    unknown_cost: float = 8.0
    unknown_letter_cost: float = 1.0
    keyterm_boost: float = 1.0
    blank_penalty: float = 0.0

    def __post_init__(self) -> None:
        """Raises: ValueError for weights that are not finite, too large or of the wrong sign."""
        values = dataclasses.asdict(self)
        for name, value in values.items():
            if not math.isfinite(value):
                raise ValueError(f"{name} must be a finite number, not {value}")
            if abs(value) > LARGEST:
                raise ValueError(f"{name} must be between -{LARGEST:g} and {LARGEST:g}, not {value}")
            if value < 0 and name != "word_bonus":
                raise ValueError(f"{name} must be at least 0, not {value}")

    @classmethod
    def load(cls, path: Path) -> DecodingWeights:
        """Read the JSON written by `save`. Raises: ModelError with the path."""
        try:
            return cls(**{name: float(value) for name, value in json.loads(read_text(path, ValueError)).items()})
        except (ValueError, TypeError, AttributeError) as error:
            raise ModelError(f"cannot read decoding weights {path}: {error}") from error

    def save(self, path: Path) -> None:
        """Write one JSON object with a member for each weight. Raises: OSError."""
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n", encoding="utf-8")


PHONES_WEIGHTS = DecodingWeights(lm_weight=1.0, word_bonus=0.5, blank_penalty=1.0)
"""Default weights for a search over phones with an untuned language model."""
