"""The coordinator of one process: a call that is refused counts against no key."""

from __future__ import annotations

import asyncio

import pytest

from server.coordination.coordinator import CallLease, Coordinator
from server.coordination.local import LocalCoordinator
from server.errors import ServerFull, TooManyStreams


class Full:
    """A server without room once `full` is set."""

    full = False

    def refuse_if_full(self) -> None:
        if self.full:
            raise ServerFull("all streams are taken")


def enter(coordinator: Coordinator, owner: str, limit: int | None) -> CallLease:
    return asyncio.run(coordinator.enter(owner, limit))


def test_a_call_counts_against_its_key_until_it_is_released() -> None:
    coordinator = LocalCoordinator(Full(), lambda: 0.0)
    first = enter(coordinator, "a", 1)
    with pytest.raises(TooManyStreams):
        enter(coordinator, "a", 1)
    enter(coordinator, "b", 1).release()
    first.release()
    enter(coordinator, "a", 1)


def test_a_call_without_room_is_not_counted() -> None:
    room = Full()
    coordinator = LocalCoordinator(room, lambda: 0.0)
    room.full = True
    for _ in range(3):
        with pytest.raises(ServerFull):
            enter(coordinator, "a", 1)
    with pytest.raises(ServerFull):
        coordinator.refuse_if_full()
    room.full = False
    coordinator.refuse_if_full()
    enter(coordinator, "a", 1)


def test_refused_clients_are_spread() -> None:
    coordinator = LocalCoordinator(Full(), lambda: 5.0)
    waits = [coordinator.retry_after_s(1) for _ in range(200)]
    assert (waits[0], waits[-1]) == (1, 5)
