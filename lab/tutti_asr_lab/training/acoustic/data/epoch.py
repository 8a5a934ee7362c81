"""Plan of an epoch: which recordings form which micro-batch of which update; a pure function of (seed, epoch).

Every recording of the epoch's order is in exactly one micro-batch. The last update may have fewer micro-batches than
the recipe's number; none is padded or repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from model.recordings import Utterance
from tutti_asr_lab.training.acoustic.augment import AS_RECORDED, Augmentation, Timing
from tutti_asr_lab.training.acoustic.data.corpus import epoch_order
from tutti_asr_lab.training.acoustic.data.draws import Purpose, draws
from tutti_asr_lab.training.acoustic.recipe import Recipe

SHORT_S = 1.5  # shorter recordings are words and digits, which callers mostly say in sequences
PAUSE_S = (0.02, 0.6)  # between joined recordings


@dataclass(frozen=True, slots=True)
class Item:
    """Recordings joined into one training example, with the pauses between them and the timing."""

    recordings: tuple[int, ...]
    pauses_s: tuple[float, ...] = ()
    timing: Timing = AS_RECORDED

    def seconds(self, durations_s: Sequence[float]) -> float:
        """Length of the example."""
        return self.timing.seconds(sum(durations_s[i] for i in self.recordings) + sum(self.pauses_s))


MicroBatch = list[Item]


def epoch_updates(
    utterances: Sequence[Utterance], recipe: Recipe, epoch: int, *, by_length: bool
) -> list[list[MicroBatch]]:
    """Updates of an epoch, each of up to `recipe.micro_batches` micro-batches; shortest first if `by_length`."""
    rng = draws(recipe.seed, Purpose.ORDER, epoch)
    durations = [u.duration_s for u in utterances]
    order = epoch_order(utterances, recipe.weights, recipe.speaker_cap, rng)
    items = [timed(joined, recipe.augmentation, rng) for joined in join(order, durations, rng)]
    groups = group(items, durations, recipe.micro_batch_s)
    return in_updates(groups, recipe.micro_batches, rng, by_length=by_length)


def join(order: Sequence[int], durations_s: Sequence[float], rng: np.random.Generator) -> list[tuple[int, ...]]:
    """Join short recordings into sequences of 1 to 6, and a tenth of the longer ones into pairs.

    A stream has several utterances with pauses; a network trained without pauses does not recover after one.
    """
    items: list[tuple[int, ...]] = []
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


def timed(recordings: tuple[int, ...], augmentation: Augmentation, rng: np.random.Generator) -> Item:
    """Draw pauses and timing of an example."""
    pauses = rng.uniform(*PAUSE_S, len(recordings) - 1).tolist()
    return Item(recordings, tuple(pauses), Timing.drawn(augmentation, rng))


def group(items: Sequence[Item], durations_s: Sequence[float], micro_batch_s: float) -> list[MicroBatch]:
    """Micro-batches of at most `micro_batch_s` padded seconds from items of similar length, shortest first.

    An item longer than that has a micro-batch of its own.
    """
    lengths = np.array([item.seconds(durations_s) for item in items])
    groups: list[MicroBatch] = [[]]
    for position in np.argsort(lengths, kind="stable"):
        if (len(groups[-1]) + 1) * lengths[position] > micro_batch_s:
            groups.append([])
        groups[-1].append(items[position])
    return [g for g in groups if g]


def in_updates(
    groups: Sequence[MicroBatch], micro_batches: int, rng: np.random.Generator, *, by_length: bool
) -> list[list[MicroBatch]]:
    """Group consecutive micro-batches into updates; their lengths are similar, so processes take equally long.

    Source of shortest-first in the first epoch: SortaGrad, Deep Speech 2, section 3.2.
    """
    updates = [list(groups[i : i + micro_batches]) for i in range(0, len(groups), micro_batches)]
    if not by_length:
        rng.shuffle(updates)
    return updates


def part_of(update: Sequence[MicroBatch], micro_batches: int, rank: int, size: int) -> range:
    """Numbers, within the update, of the micro-batches that a process computes; fewer if the update is short."""
    share = micro_batches // size
    return range(min(rank * share, len(update)), min((rank + 1) * share, len(update)))
