"""Plan of an epoch: every recording as often as its weight, in one process; deterministic."""

from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from model.recordings import Utterance
from tests.support.training.tones import STRONG, recipe
from tutti_asr_lab.training.acoustic.augment import AS_RECORDED, Timing
from tutti_asr_lab.training.acoustic.data.draws import Purpose, draws
from tutti_asr_lab.training.acoustic.data.epoch import Item, epoch_updates, group, join, part_of, timed


def utterances(count=300):
    rng = np.random.default_rng(0)
    return [
        Utterance(Path(f"{i}.flac"), "a", "once" if i % 3 else "thrice", f"s{i}", float(rng.uniform(0.3, 8.0)))
        for i in range(count)
    ]


CHOSEN = recipe(micro_batch_s=20.0, micro_batches=4, weights={"thrice": 3.0})


@pytest.mark.parametrize("processes", [1, 2, 4])
@pytest.mark.parametrize("by_length", [True, False])
def test_all_processes_together_use_every_recording_exactly_as_often_as_its_weight(processes, by_length):
    spoken = utterances()
    updates = epoch_updates(spoken, CHOSEN, 3, by_length=by_length)
    used = Counter()
    for update in updates:
        for rank in range(processes):
            for number in part_of(update, 4, rank, processes):
                used.update(index for item in update[number] for index in item.recordings)
    assert used == {index: 1 if u.source == "once" else 3 for index, u in enumerate(spoken)}
    assert any(len(update) < 4 for update in updates), "the last update is short, and nothing is repeated to fill it"


def test_the_plan_depends_only_on_seed_and_epoch():
    spoken = utterances()
    np.random.default_rng(5).random(7)
    first = epoch_updates(spoken, CHOSEN, 3, by_length=False)
    assert epoch_updates(spoken, CHOSEN, 3, by_length=False) == first
    assert epoch_updates(spoken, CHOSEN, 4, by_length=False) != first
    assert epoch_updates(spoken, recipe(micro_batch_s=20.0, micro_batches=4, seed=2), 3, by_length=False) != first


def test_the_first_epoch_is_sorted_by_length():
    spoken = utterances()
    updates = epoch_updates(spoken, CHOSEN, 0, by_length=True)
    durations = [u.duration_s for u in spoken]
    lengths = [
        np.mean([item.seconds(durations) for micro_batch in update for item in micro_batch]) for update in updates
    ]
    assert all(later >= earlier for earlier, later in pairwise(lengths))
    assert lengths[-1] > 5 * lengths[0]


def test_processes_take_consecutive_micro_batches_so_that_each_adds_a_subtree():
    update = [[Item((number,))] for number in range(3)]  # the last micro-batch of four is missing
    assert [list(part_of(update, 4, rank, 2)) for rank in range(2)] == [[0, 1], [2]]
    assert [list(part_of(update, 4, rank, 4)) for rank in range(4)] == [[0], [1], [2], []]
    assert list(part_of(update, 4, 0, 1)) == [0, 1, 2]


def test_joining_and_grouping_lose_no_recording():
    rng = np.random.default_rng(0)
    durations = rng.uniform(0.3, 8.0, 500).tolist()
    items = [timed(joined, STRONG, rng) for joined in join(range(500), durations, rng)]
    groups = group(items, durations, 60.0)
    assert sorted(i for g in groups for item in g for i in item.recordings) == list(range(500))
    assert max(len(item.recordings) for item in items) <= 6
    padded = [len(g) * max(item.seconds(durations) for item in g) for g in groups]
    assert max(padded) <= 60.0
    assert sum(item.seconds(durations) for item in items) > 0.85 * sum(padded), "at most 15 % of a batch is padding"


def test_an_item_lasts_as_long_as_its_audio():
    rng = np.random.default_rng(1)
    pcm = rng.standard_normal(3 * 16_000).astype(np.float32)
    for _ in range(20):
        timing = Timing.drawn(STRONG, rng)
        assert len(timing(pcm, 16_000)) / 16_000 == pytest.approx(timing.seconds(3.0), abs=2e-4)
    assert np.array_equal(AS_RECORDED(pcm, 16_000), pcm)


def test_draws_for_different_purposes_epochs_and_micro_batches_are_independent():
    keys = [(p, epoch, number) for p in Purpose for epoch in range(3) for number in range(3)]
    first = {draws(1, *key).random() for key in keys}
    assert len(first) == len(keys)
    assert draws(1, Purpose.AUDIO, 2, 3).random() == draws(1, Purpose.AUDIO, 2, 3).random()
