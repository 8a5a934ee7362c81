"""Every slot model, used through pool and stepper with reused slots, against each stream alone."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from batching.errors import PoolFull, RepeatedHandle, StaleHandle
from batching.pool import Handle
from batching.slot_model import SlotModel
from batching.stepper import Stepper
from tests.support.networks.slot_models import SLOT_MODELS

EXAMPLES = {"numpy": 340}  # of 50 steps; Hypothesis ends some early: more than 10,000 steps in all
OTHER_EXAMPLES = 60
CAPACITY, LARGEST = 5, 4
PICKS = st.lists(st.integers(0, CAPACITY - 1), max_size=LARGEST, min_size=1, unique=True)
CHOICE = st.integers(0, CAPACITY - 1)


class SlotsMachine(RuleBasedStateMachine):
    """The naive model maps each held handle to its state in bytes, and steps each stream by itself."""

    model: ClassVar[SlotModel]
    alone: ClassVar[SlotModel]  # of one slot
    steps: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.stepper = Stepper(self.model)  # the slots hold whatever the last example left there
        self.pool = self.stepper.pool
        self.alone.reset(0)
        self.fresh = self.alone.export(0)
        self.naive: dict[Handle, bytes] = {}
        self.released: list[Handle] = []
        self.answers: list[tuple[np.ndarray, np.ndarray]] = []  # with a copy of each

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
            self.naive[handle] = self.fresh

    @precondition(lambda self: self.naive)
    @rule(choice=CHOICE)
    def release(self, choice: int) -> None:
        handle = list(self.naive)[choice % len(self.naive)]
        self.pool.release(handle)
        del self.naive[handle]
        self.released.append(handle)

    @precondition(lambda self: self.naive)
    @rule(choice=CHOICE)
    def reset(self, choice: int) -> None:
        handle = list(self.naive)[choice % len(self.naive)]
        self.pool.reset(handle)
        self.naive[handle] = self.fresh

    @precondition(lambda self: self.naive)
    @rule(origin=CHOICE, copy=CHOICE)
    def export_and_restore(self, origin: int, copy: int) -> None:
        held = list(self.naive)
        source, destination = held[origin % len(held)], held[copy % len(held)]
        self.pool.restore(destination, self.pool.export(source))
        self.naive[destination] = self.naive[source]

    @precondition(lambda self: self.naive)
    @rule(picks=PICKS, seed=st.integers(0, 2**32 - 1), length=st.integers(0, 2))
    def step_a_batch(self, picks: list[int], seed: int, length: int) -> None:
        steps = self.stepper.chunk_steps[length % len(self.stepper.chunk_steps)]
        handles = (self.pick(picks) or [next(iter(self.naive))])[: LARGEST // steps]
        rows = np.random.default_rng(seed).integers(0, 9_000, (len(handles) * steps, *self.alone.inputs.shape[1:]))
        inputs = list(rows.astype(self.alone.inputs.dtype))
        outputs = self.stepper.run(handles, inputs, steps)
        self.answers.append((outputs, outputs.copy()))
        assert len(outputs) == len(inputs)
        in_rows = [handle for handle in handles for _ in range(steps)]
        for handle, one, output in zip(in_rows, inputs, outputs, strict=True):
            self.alone.restore(0, self.naive[handle])
            self.alone.inputs[0] = one
            assert np.array_equal(self.alone.run([0])[0], output)
            self.naive[handle] = self.alone.export(0)

    @precondition(lambda self: self.released)
    @rule(choice=st.integers(0, 99), picks=PICKS)
    def use_a_stale_handle(self, choice: int, picks: list[int]) -> None:
        """A stale handle is rejected alone and with valid ones; the valid streams are unchanged."""
        stale = self.released[choice % len(self.released)]
        for use in (self.pool.release, self.pool.reset, self.pool.export):
            with pytest.raises(StaleHandle):
                use(stale)
        batch = [*self.pick(picks)[1:], stale]
        with pytest.raises(StaleHandle):
            self.stepper.run(batch, [np.zeros_like(self.alone.inputs[0])] * len(batch))

    @precondition(lambda self: self.naive)
    @rule(choice=CHOICE)
    def repeat_a_handle(self, choice: int) -> None:
        handle = list(self.naive)[choice % len(self.naive)]
        with pytest.raises(RepeatedHandle):
            self.stepper.run([handle, handle], [np.zeros_like(self.alone.inputs[0])] * 2)

    @invariant()
    def counts_agree(self) -> None:
        type(self).steps += 1
        assert self.pool.used == len(self.naive)

    def teardown(self) -> None:
        """Every stream has its own state, and no answer changed after it was returned."""
        assert {handle: self.pool.export(handle) for handle in self.naive} == self.naive
        assert all(np.array_equal(answer, copy) for answer, copy in self.answers)


@pytest.mark.parametrize("kind", SLOT_MODELS)
def test_slots_in_any_batches_agree_with_each_stream_alone(kind: str) -> None:
    class Machine(SlotsMachine):
        model, alone = SLOT_MODELS[kind](CAPACITY, LARGEST), SLOT_MODELS[kind](1, 1)

    examples = EXAMPLES.get(kind, OTHER_EXAMPLES)
    run_state_machine_as_test(
        Machine, settings=settings(max_examples=examples, stateful_step_count=50, deadline=None, database=None)
    )
    assert Machine.steps >= 30 * examples, Machine.steps
