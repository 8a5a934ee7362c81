"""The state pool against a dictionary, under random use with slots reused all the time: at least 10,000 steps a run."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from batching.errors import PoolFull, RepeatedHandle, StaleHandle
from batching.pool import Handle, StatePool
from batching.step_model import TensorSpec

EXAMPLES, STEPS = 320, 50  # Hypothesis ends some runs early: about 13,000 steps in all
CAPACITY = 4
SPEC = {"vector": TensorSpec((2,), torch.float32), "count": TensorSpec((), torch.int64)}
PICKS = st.lists(st.integers(0, CAPACITY - 1), max_size=CAPACITY, unique=True)


class PoolMachine(RuleBasedStateMachine):
    """The naive pool maps each held handle to the one number that fills its state."""

    steps: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.pool = StatePool(SPEC, CAPACITY, torch.device("cpu"))
        self.naive: dict[Handle, int] = {}
        self.released: list[Handle] = []
        self.written = 0

    def pick(self, picks: list[int]) -> list[Handle]:
        held = list(self.naive)
        return [held[i] for i in picks if i < len(held)]

    @rule()
    def take(self) -> None:
        if len(self.naive) == CAPACITY:
            with pytest.raises(PoolFull):
                self.pool.take()
        else:
            handle = self.pool.take()
            assert handle not in self.naive
            assert handle not in self.released
            assert handle.slot not in {other.slot for other in self.naive}
            self.naive[handle] = 0

    @precondition(lambda self: self.naive)
    @rule(choice=st.integers(0, CAPACITY - 1))
    def release(self, choice: int) -> None:
        handle = list(self.naive)[choice % len(self.naive)]
        self.pool.release(handle)
        del self.naive[handle]
        self.released.append(handle)

    @precondition(lambda self: self.naive)
    @rule(choice=st.integers(0, CAPACITY - 1))
    def reset(self, choice: int) -> None:
        handle = list(self.naive)[choice % len(self.naive)]
        self.pool.reset(handle)
        self.naive[handle] = 0

    @rule(picks=PICKS, padding=st.integers(0, 3))
    def step_a_batch(self, picks: list[int], padding: int) -> None:
        """Gather, check, write new numbers into every row, the padding too, and scatter."""
        handles = self.pick(picks)
        rows = len(handles) + padding
        state = self.pool.gather(handles, rows)
        expected = torch.tensor([self.naive[handle] for handle in handles] + [0] * padding, dtype=torch.int64)
        assert torch.equal(state["count"], expected)
        assert torch.equal(state["vector"], expected[:, None].expand(rows, 2).float())
        fresh = torch.arange(self.written + 1, self.written + 1 + rows)
        self.written += rows
        self.pool.scatter(handles, {"count": fresh, "vector": fresh[:, None].repeat(1, 2).float()})
        self.naive.update(zip(handles, fresh.tolist(), strict=False))

    @precondition(lambda self: self.released)
    @rule(choice=st.integers(0, 99), picks=PICKS)
    def use_a_stale_handle(self, choice: int, picks: list[int]) -> None:
        """Refused alone and in company; the company is not touched."""
        stale = self.released[choice % len(self.released)]
        with pytest.raises(StaleHandle):
            self.pool.release(stale)
        with pytest.raises(StaleHandle):
            self.pool.reset(stale)
        batch = [*self.pick(picks), stale]
        with pytest.raises(StaleHandle):
            self.pool.gather(batch, len(batch))
        ones = {name: torch.ones((len(batch), *row.shape), dtype=row.dtype) for name, row in SPEC.items()}
        with pytest.raises(StaleHandle):
            self.pool.scatter(batch, ones)

    @precondition(lambda self: self.naive)
    @rule(choice=st.integers(0, CAPACITY - 1))
    def repeat_a_handle(self, choice: int) -> None:
        handle = list(self.naive)[choice % len(self.naive)]
        with pytest.raises(RepeatedHandle):
            self.pool.gather([handle, handle], 2)

    @invariant()
    def counts_agree(self) -> None:
        type(self).steps += 1
        assert self.pool.used == len(self.naive)

    def teardown(self) -> None:
        """Every stream still holds its own number."""
        handles = list(self.naive)
        assert self.pool.gather(handles, len(handles))["count"].tolist() == list(self.naive.values())


def test_pool_agrees_with_a_dictionary() -> None:
    class Machine(PoolMachine):
        pass

    run_state_machine_as_test(
        Machine, settings=settings(max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None, database=None)
    )
    assert Machine.steps >= 10_000, Machine.steps
