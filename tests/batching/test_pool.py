"""The slot pool: slots are reset on allocation, and a handle is valid until its release."""

from __future__ import annotations

import pytest

from batching.errors import StaleHandle, WrongState
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


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("slot", [0, 1, -1, 99])
def test_a_handle_of_another_pool_is_refused(use: str, slot: int) -> None:
    pool = make(capacity=2)
    own = pool.take()
    with pytest.raises(StaleHandle):
        apply(pool, use, Handle(slot, own.generation))


def test_a_state_of_another_size_is_refused_and_changes_nothing() -> None:
    pool = make()
    handle = pool.take()
    with pytest.raises(WrongState):
        pool.restore(handle, OTHER[1:])
    assert pool.export(handle) == STATE
