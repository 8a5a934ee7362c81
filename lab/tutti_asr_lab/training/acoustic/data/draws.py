"""Random numbers of a run: one generator per purpose, epoch and micro-batch, the same in every process."""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """What is drawn; generators of different purposes are independent."""

    ORDER = 0  # of an epoch
    AUDIO = 1  # augmentation
    LEARNING = 2  # masks and dropout
    FEATURES = 3  # augmentation of the audio for feature statistics


def draws(seed: int, purpose: Purpose, epoch: int = 0, micro_batch: int = 0) -> np.random.Generator:
    """Generator seeded with all four; `micro_batch` is its number within the epoch, over all processes."""
    return np.random.default_rng([seed, purpose, epoch, micro_batch])
