"""The list of an epoch: which recordings make up which micro-batch of which update; a pure function of (seed, epoch).

Every recording of the epoch's order is in exactly one micro-batch. An update may have fewer micro-batches than the
recipe says where the order does not divide; it has none that is padded or repeated.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from model.recordings import Utterance
from model.training.data.corpus import epoch_order
from model.training.data.draws import Purpose, draws
from model.training.recipe import Recipe

SHORT_S = 1.5  # recordings below this are words and digits, which callers mostly say in strings
Item = tuple[int, ...]  # utterances that are joined into one training example
MicroBatch = list[Item]


def epoch_updates(
    utterances: Sequence[Utterance], recipe: Recipe, epoch: int, *, by_length: bool
) -> list[list[MicroBatch]]:
    """The updates of an epoch, each of up to `recipe.micro_batches` micro-batches; shortest first if `by_length`."""
    rng = draws(recipe.seed, Purpose.ORDER, epoch)
    durations = [u.duration_s for u in utterances]
    order = epoch_order(utterances, recipe.weights, recipe.speaker_cap, rng, recipe.share)
    items = join(order, durations, rng)
    groups = group(items, durations, recipe.micro_batch_s, rng)
    return in_updates(groups, recipe.micro_batches, rng, by_length=by_length)


def join(order: Sequence[int], durations_s: Sequence[float], rng: np.random.Generator) -> list[Item]:
    """Join short recordings into strings of 1 to 6, and a tenth of the longer ones in pairs.

    A stream holds more than one utterance, with pauses, and a network trained without them does not recover after one.
    """
    items: list[Item] = []
    short: list[int] = []
    long: list[int] = []
    wanted = int(rng.integers(1, 7))
    for index in order:
        if durations_s[index] < SHORT_S:
            short.append(index)
            if len(short) >= wanted:
                items.append(tuple(short))
                short, wanted = [], (1 if rng.random() < 0.4 else int(rng.integers(2, 7)))
        elif durations_s[index] < 6.0 and (long or rng.random() < 0.1):
            long.append(index)
            if len(long) == 2:
                items.append(tuple(long))
                long = []
        else:
            items.append((index,))
    return items + [tuple(x) for x in (short, long) if x]


def group(
    items: Sequence[Item], durations_s: Sequence[float], micro_batch_s: float, rng: np.random.Generator
) -> list[MicroBatch]:
    """Micro-batches of about `micro_batch_s` padded seconds from items of like length, shortest first."""
    lengths = np.array([sum(durations_s[i] for i in item) for item in items]) * rng.uniform(0.9, 1.1, len(items))
    groups: list[MicroBatch] = [[]]
    for position in np.argsort(lengths):
        if (len(groups[-1]) + 1) * (lengths[position] + 0.5) > micro_batch_s:
            groups.append([])
        groups[-1].append(items[position])
    return [g for g in groups if g]


def in_updates(
    groups: Sequence[MicroBatch], micro_batches: int, rng: np.random.Generator, *, by_length: bool
) -> list[list[MicroBatch]]:
    """Updates of neighbours, which are of like length, so that processes that share an update take equally long.

    Source of shortest-first in the first epoch: SortaGrad, Deep Speech 2, section 3.2.
    """
    updates = [list(groups[i : i + micro_batches]) for i in range(0, len(groups), micro_batches)]
    if not by_length:
        rng.shuffle(updates)
    return updates


def part_of(update: Sequence[MicroBatch], micro_batches: int, rank: int, size: int) -> range:
    """Numbers within the update of the micro-batches that a process computes: a subtree, less what is not there."""
    share = micro_batches // size
    return range(min(rank * share, len(update)), min((rank + 1) * share, len(update)))
