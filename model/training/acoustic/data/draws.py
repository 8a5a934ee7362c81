"""Random numbers of a run: a generator for each purpose, epoch and micro-batch, whichever process computes it."""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """What is drawn; generators of different purposes have nothing in common."""

    ORDER = 0  # of an epoch
    AUDIO = 1  # augmentation
    LEARNING = 2  # masks and dropout
    FEATURES = 3  # audio for the statistics of the features


def draws(seed: int, purpose: Purpose, epoch: int = 0, micro_batch: int = 0) -> np.random.Generator:
    """A generator from all four; `micro_batch` is numbered within the epoch, over all processes."""
    return np.random.default_rng([seed, purpose, epoch, micro_batch])
