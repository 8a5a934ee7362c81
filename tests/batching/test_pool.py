"""The slot pool's refusals; `test_slots_stateful.py` checks it under random operations."""

from __future__ import annotations

import pytest

from batching.errors import StaleHandle, WrongState
from batching.pool import Handle, SlotPool
from tests.support.servers.fakes import EchoModel


@pytest.mark.parametrize("use", ["release", "reset", "export", "restore", "slots"])
@pytest.mark.parametrize("slot", [0, 1, -1, 99])
def test_a_handle_of_another_pool_is_refused(use: str, slot: int) -> None:
    pool = SlotPool(EchoModel(capacity=2))
    other = Handle(slot, pool.take().generation)
    arguments = {"slots": ([other],), "restore": (other, bytes(EchoModel.state_bytes))}.get(use, (other,))
    with pytest.raises(StaleHandle):
        getattr(pool, use)(*arguments)


def test_a_state_of_another_size_is_refused_and_changes_nothing() -> None:
    pool = SlotPool(EchoModel())
    handle = pool.take()
    with pytest.raises(WrongState):
        pool.restore(handle, b"\1" * (EchoModel.state_bytes - 1))
    assert pool.export(handle) == bytes(EchoModel.state_bytes)
