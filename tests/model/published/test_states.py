"""States in slots: a graph gets the state of each stream, whatever axis the batch has, and whatever moves meanwhile."""

from __future__ import annotations

import numpy as np

from model.published.states import SlotStates, StateTensor

TENSORS = (
    StateTensor((), np.dtype(np.int64)),
    StateTensor((3, 2), np.dtype(np.float32), axis=1),
    StateTensor((5,), np.dtype(np.float16)),
)


def test_states_follow_their_streams_through_batches_and_moves() -> None:
    states, capacity = SlotStates(TENSORS, capacity=4), 4
    batch, dice = states.batched(3), np.random.default_rng(1)
    expected = [[np.zeros(tensor.shape, tensor.dtype) for tensor in TENSORS] for _ in range(capacity)]
    for step in range(30):
        slots = dice.permutation(capacity)[: 1 + step % 3]
        padded = np.resize(slots, 3)  # rows after the streams' are padding
        batch.gather(padded)
        for number, tensor in enumerate(TENSORS):
            before = np.moveaxis(batch.before(3)[number], tensor.axis, 0)
            assert before.shape == (3, *tensor.shape)
            for row, slot in enumerate(slots):
                assert np.array_equal(before[row], expected[slot][number])
            after = np.moveaxis(batch.after(3)[number], tensor.axis, 0)
            after[:] = dice.integers(0, 99, after.shape)
            for row, slot in enumerate(slots):
                expected[slot][number] = after[row].copy()
        batch.scatter(slots, 3)
        if step % 7 == 3:  # a stream moves to another slot, and its slot starts a new one
            moved = states.export(1)
            assert len(moved) == states.state_bytes == 8 + 24 + 10
            states.reset(1)
            states.restore(2, moved)
            expected[2], expected[1] = expected[1], [np.zeros_like(each) for each in expected[1]]
