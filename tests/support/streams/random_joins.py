"""Streams that join at random steps and run in random batches with reused slots, and the same streams alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batching.pool import Handle
from batching.slot_model import SlotModel
from batching.stepper import Stepper

Rows = list[NDArray[Any]]


def together(model: SlotModel, sequences: Sequence[NDArray[Any]], seed: int) -> list[Rows]:
    """Outputs of each sequence of inputs (T, …); at most `capacity` streams are open at a time."""
    dice, stepper = np.random.default_rng(seed), Stepper(model)
    outputs: list[Rows] = [[] for _ in sequences]
    waiting, open_ = list(range(len(sequences))), dict[int, Handle]()
    while waiting or open_:
        while waiting and len(open_) < model.capacity and dice.random() < 0.5:
            open_[waiting.pop()] = stepper.pool.take()
        members = dice.permutation(list(open_))[: dice.integers(1, len(model.inputs) + 1)].tolist()
        if members:
            rows = stepper.run([open_[i] for i in members], [sequences[i][len(outputs[i])] for i in members])
            for i, row in zip(members, rows, strict=True):
                outputs[i].append(row)
        for i in members:
            if len(outputs[i]) == len(sequences[i]):
                stepper.pool.release(open_.pop(i))
    return outputs


def alone(model: SlotModel, sequence: NDArray[Any]) -> Rows:
    """Outputs of one sequence in batches of one row."""
    stepper = Stepper(model)
    handle = stepper.pool.take()
    return [stepper.run([handle], [inputs])[0] for inputs in sequence]
