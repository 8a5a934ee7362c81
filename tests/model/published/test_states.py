"""States in slots: caches of frames as rings give the graph the frames in their order, whatever moves meanwhile."""

from __future__ import annotations

import numpy as np
import pytest

from model.published.states import SlotStates, StateTensor

FLOAT, LONG = np.dtype(np.float32), np.dtype(np.int64)


def shifted(frames, new):
    """Return a cache (T, D) after the new frames, the way a graph writes it."""
    return np.concatenate([frames, new])[-len(frames) :]


@pytest.mark.parametrize(("frames", "appended"), [(6, 1), (6, 2), (7, 3), (4, 4)])
def test_a_ring_holds_the_last_frames_of_every_stream_in_order(frames: int, appended: int) -> None:
    tensors = (StateTensor((), LONG), StateTensor((frames, 3), FLOAT, appended=appended), StateTensor((2, 5), FLOAT))
    states = SlotStates(tensors, capacity=4)
    batch = states.batched(3)
    dice = np.random.default_rng(frames)
    expected = np.zeros((4, frames, 3), np.float32)
    for step in range(30):
        slots = dice.permutation(4)[: 1 + step % 3]
        rows = len(slots)
        batch.gather(slots)
        assert np.array_equal(batch.before(rows)[1], expected[slots])
        new = dice.standard_normal((rows, appended, 3)).astype(np.float32)
        after = batch.after(rows)
        after[0][:] = batch.before(rows)[0] + 1
        after[1][:] = new
        after[2][:] = step
        batch.scatter(slots, rows)
        for row, slot in enumerate(slots):
            expected[slot] = shifted(expected[slot], new[row])
        if step % 7 == 3:  # a stream moves to another slot, and its slot starts a new one
            moved = states.export(1)
            states.reset(1)
            states.restore(2, moved)
            expected[2], expected[1] = expected[1], 0
    assert len(states.export(0)) == states.state_bytes


def test_a_state_that_is_returned_whole_is_as_before():
    states = SlotStates((StateTensor((3, 2), FLOAT, axis=1),), capacity=2)
    batch = states.batched(2)
    batch.after(2)[0][:] = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    batch.scatter(np.array([1, 0]), 2)
    batch.gather(np.array([0, 1]))
    assert np.array_equal(batch.before(2)[0], np.arange(12, dtype=np.float32).reshape(3, 2, 2)[:, ::-1])
    assert states.state_bytes == 24
