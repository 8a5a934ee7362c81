"""The slot pool: slots are reset on allocation, and a handle is valid until its release."""

from __future__ import annotations

import pytest

from batching.errors import PoolFull, RepeatedHandle, StaleHandle, WrongState
from batching.pool import Handle, SlotPool
from tests.support.servers.fakes import EchoModel

USES = ["release", "reset", "export", "restore", "slots"]
STATE = bytes(EchoModel.state_bytes)
OTHER = b"\1" * EchoModel.state_bytes


def make(capacity: int = 4) -> SlotPool:
    return SlotPool(EchoModel(capacity))


def apply(pool: SlotPool, use: str, handle: Handle) -> None:
    if use == "slots":
        pool.slots([handle])
    elif use == "restore":
        pool.restore(handle, OTHER)
    else:
        getattr(pool, use)(handle)


def test_a_slot_is_clean_when_it_is_taken_again() -> None:
    pool = make(capacity=1)
    first = pool.take()
    assert pool.export(first) == STATE
    pool.restore(first, OTHER)
    pool.release(first)
    second = pool.take()
    assert (second.slot, second.generation) == (first.slot, first.generation + 1)
    assert pool.export(second) == STATE


def test_a_reset_slot_equals_a_new_one_and_other_slots_are_unchanged() -> None:
    pool = make()
    used, neighbor, fresh = (pool.take() for _ in range(3))
    pool.restore(used, OTHER)
    pool.restore(neighbor, OTHER)
    pool.reset(used)
    assert [pool.export(handle) for handle in (used, neighbor, fresh)] == [STATE, OTHER, STATE]


def test_a_full_pool_refuses_until_a_slot_is_released() -> None:
    pool = make(capacity=2)
    handle, _ = pool.take(), pool.take()
    with pytest.raises(PoolFull, match="2 slots"):
        pool.take()
    pool.release(handle)
    pool.take()
    assert pool.used == 2


@pytest.mark.parametrize("use", USES)
def test_a_stale_handle_is_refused_even_if_its_slot_has_a_new_owner(use: str) -> None:
    pool = make(capacity=1)
    stale = pool.take()
    pool.release(stale)
    for _ in range(2):
        with pytest.raises(StaleHandle):
            apply(pool, use, stale)
        if not pool.used:
            owner = pool.take()
    assert pool.export(owner) == STATE


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("slot", [0, 1, -1, 99])
def test_a_handle_of_another_pool_is_refused(use: str, slot: int) -> None:
    pool = make(capacity=2)
    own = pool.take()
    with pytest.raises(StaleHandle):
        apply(pool, use, Handle(slot, own.generation))


def test_the_slots_of_a_batch_are_in_its_order_and_differ() -> None:
    pool = make()
    handles = [pool.take() for _ in range(3)]
    assert pool.slots(handles[::-1]) == [handle.slot for handle in handles[::-1]]
    with pytest.raises(RepeatedHandle):
        pool.slots([*handles, handles[0]])


def test_a_state_of_another_size_is_refused_and_changes_nothing() -> None:
    pool = make()
    handle = pool.take()
    with pytest.raises(WrongState):
        pool.restore(handle, OTHER[1:])
    assert pool.export(handle) == STATE
