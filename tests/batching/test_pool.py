"""The state pool: merge and split are exact, slots start clean, and a handle opens its own slot only while held."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from batching.errors import PoolFull, RepeatedHandle, StaleHandle
from batching.pool import Handle, StatePool
from batching.step_model import TensorSpec

SPEC = {
    "hidden": TensorSpec((3,), torch.float32),
    "half": TensorSpec((2, 4), torch.bfloat16),
    "count": TensorSpec((), torch.int64),
}


def make(capacity: int = 4) -> StatePool:
    return StatePool(SPEC, capacity, torch.device("cpu"))


def noise(rows: int, seed: int = 0) -> dict[str, Tensor]:
    """A batch of states, no two values alike."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randint(1, 10_000, (rows, *row.shape), generator=generator).to(row.dtype)
        for name, row in SPEC.items()
    }


def assert_same(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert torch.equal(value, right[name]), name


def test_gather_after_scatter_is_the_identity_in_any_order() -> None:
    pool = make()
    handles = [pool.take() for _ in range(4)]
    state = noise(4)
    pool.scatter(handles, state)
    assert_same(pool.gather(handles, 4), state)
    order = [2, 0, 3]
    assert_same(pool.gather([handles[i] for i in order], 3), {name: value[order] for name, value in state.items()})


def test_scatter_after_gather_changes_nothing() -> None:
    pool = make()
    handles = [pool.take() for _ in range(4)]
    pool.scatter(handles, noise(4))
    before = pool.gather(handles, 4)
    pool.scatter(handles[1:3], pool.gather(handles[1:3], 2))
    assert_same(pool.gather(handles, 4), before)


def test_scatter_touches_only_its_own_streams() -> None:
    pool = make()
    handles = [pool.take() for _ in range(4)]
    state = noise(4)
    pool.scatter(handles, state)
    pool.scatter([handles[1]], noise(1, seed=1))
    others = [0, 2, 3]
    assert_same(pool.gather([handles[i] for i in others], 3), {name: value[others] for name, value in state.items()})


def test_gather_returns_copies() -> None:
    pool = make()
    handle = pool.take()
    pool.gather([handle], 1)["hidden"].fill_(7)
    assert not pool.gather([handle], 1)["hidden"].any()


def test_padding_rows_read_zero_and_are_never_written() -> None:
    pool = make(capacity=2)
    handle = pool.take()
    pool.scatter([handle], noise(5))
    padded = pool.gather([handle], 5)
    for value in padded.values():
        assert value[0].ne(0).all()
        assert not value[1:].any()


def test_a_reset_row_equals_a_fresh_row_and_its_neighbours_stay() -> None:
    pool = make()
    used, neighbour, fresh = (pool.take() for _ in range(3))
    state = noise(2)
    pool.scatter([used, neighbour], state)
    pool.reset(used)
    assert_same(pool.gather([used], 1), pool.gather([fresh], 1))
    assert_same(pool.gather([neighbour], 1), {name: value[1:] for name, value in state.items()})


def test_a_slot_is_clean_when_it_is_taken_again() -> None:
    pool = make(capacity=1)
    first = pool.take()
    pool.scatter([first], noise(1))
    pool.release(first)
    second = pool.take()
    assert (second.slot, second.generation) == (first.slot, first.generation + 1)
    assert not any(value.any() for value in pool.gather([second], 1).values())


def test_a_full_pool_refuses_until_a_slot_is_released() -> None:
    pool = make(capacity=2)
    handle, _ = pool.take(), pool.take()
    with pytest.raises(PoolFull, match="2 slots"):
        pool.take()
    pool.release(handle)
    pool.take()
    assert (pool.used, pool.capacity) == (2, 2)


@pytest.mark.parametrize("use", ["release", "reset", "gather", "scatter"])
def test_a_stale_handle_is_refused_even_if_its_slot_has_a_new_owner(use: str) -> None:
    pool = make(capacity=1)
    stale = pool.take()
    pool.release(stale)
    for _ in range(2):
        with pytest.raises(StaleHandle):
            apply(pool, use, stale)
        if not pool.used:
            owner = pool.take()
    assert not any(value.any() for value in pool.gather([owner], 1).values())


@pytest.mark.parametrize("use", ["release", "reset", "gather", "scatter"])
@pytest.mark.parametrize("slot", [0, 1, -1, 99])
def test_a_handle_of_another_pool_is_refused(use: str, slot: int) -> None:
    pool = make(capacity=2)
    own = pool.take()
    with pytest.raises(StaleHandle):
        apply(pool, use, Handle(slot, own.generation))


def apply(pool: StatePool, use: str, handle: Handle) -> None:
    if use == "gather":
        pool.gather([handle], 1)
    elif use == "scatter":
        pool.scatter([handle], noise(1))
    else:
        getattr(pool, use)(handle)


def test_the_same_stream_twice_in_a_batch_is_an_error() -> None:
    pool = make()
    handle = pool.take()
    with pytest.raises(RepeatedHandle):
        pool.gather([handle, handle], 2)
    with pytest.raises(RepeatedHandle):
        pool.scatter([handle, handle], noise(2))


def test_more_streams_than_rows_and_a_pool_without_slots_are_errors() -> None:
    pool = make()
    with pytest.raises(ValueError, match="do not fit"):
        pool.gather([pool.take(), pool.take()], 1)
    with pytest.raises(ValueError, match="capacity"):
        make(capacity=0)


def test_a_state_of_wrong_names_shapes_or_types_is_refused() -> None:
    pool = make()
    handle = pool.take()
    with pytest.raises(KeyError):
        pool.scatter([handle], {"hidden": torch.zeros(1, 3)})
    with pytest.raises((RuntimeError, IndexError)):
        pool.scatter([handle], noise(1) | {"hidden": torch.zeros(1, 5)})
    with pytest.raises((RuntimeError, IndexError)):
        pool.scatter([handle], noise(1) | {"hidden": torch.zeros(1, 3, dtype=torch.float64)})
