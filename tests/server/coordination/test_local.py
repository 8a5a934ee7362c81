"""The coordinator of one process: a call that is refused counts against no key."""

from __future__ import annotations

import asyncio

import pytest

from server.coordination.coordinator import CallLease, Coordinator
from server.coordination.local import LocalCoordinator
from server.errors import ServerFull, TooManyOpenings
from server.settings import Settings
from tests.server.coordination.test_slots import FixedCapacity
from tests.support.servers.fakes import FakeClock


def local(**settings: object) -> LocalCoordinator:
    return LocalCoordinator(Settings(**{"max_openings_per_s": "off", **settings}), FakeClock())


def enter(coordinator: Coordinator, owner: str, limit: int | None, *openings: str) -> CallLease:
    return asyncio.run(coordinator.enter(owner, limit, openings))


def test_a_call_without_room_is_not_counted() -> None:
    coordinator = local(max_streams=1)
    slots = coordinator.open_slots("en", 0.08)
    slots.warmed_up({1: 0.001})
    stream = asyncio.run(slots.take(1))
    for _ in range(3):
        with pytest.raises(ServerFull):
            enter(coordinator, "a", 1)
    with pytest.raises(ServerFull):
        coordinator.refuse_if_full()
    stream.cancel()
    coordinator.refuse_if_full()
    enter(coordinator, "a", 1)


def test_a_call_is_refused_if_no_model_has_room_and_one_that_loads_does_not_count() -> None:
    coordinator = local(max_streams="auto")
    models = [coordinator.open_slots(name, 0.08) for name in ("en", "es", "loading")]
    for slots in models[:2]:
        slots.warmed_up({1: 0.05})  # as slow as one stream may be
    stream = asyncio.run(models[0].take(1))
    with pytest.raises(ServerFull):
        coordinator.refuse_if_full()
    stream.cancel()
    coordinator.refuse_if_full()


def test_openings_of_each_owner_are_limited_and_a_hint_counts_none() -> None:
    coordinator = local(max_openings_per_s=0.2)
    for _ in range(3):
        coordinator.refuse_if_too_fast("address 1")
    enter(coordinator, "a", None, "address 1", "key a")
    for owners in (["address 1"], ["address 2", "key a"]):
        with pytest.raises(TooManyOpenings):
            enter(coordinator, "a", None, *owners)
    with pytest.raises(TooManyOpenings):
        coordinator.refuse_if_too_fast("address 1")
    with pytest.raises(TooManyOpenings):
        enter(coordinator, "", None, "address 2")
    enter(coordinator, "", None, "address 3")


def test_limit_and_estimate_are_those_of_the_models() -> None:
    coordinator = local(max_streams=2)
    assert (coordinator.limit, coordinator.estimate) == (0.0, 0.0)
    slots = coordinator.open_slots("en", 0.08)
    slots.warmed_up({1: 0.001})
    assert coordinator.limit == 2.0
    assert coordinator.estimate == slots.estimate > 2
    coordinator.close_slots("en")
    assert coordinator.limit == 0.0


def test_the_limit_is_that_of_the_present_mix() -> None:
    coordinator = local(max_streams="auto")
    light, heavy = (coordinator.open_slots(name, 0.08) for name in ("light", "heavy"))
    light.capacity, heavy.capacity = FixedCapacity(100), FixedCapacity(10)
    assert coordinator.limit == 100, "none is open: the default model's"
    heavy.live = 3
    assert coordinator.limit == coordinator.estimate == 10
    light.live = 30
    assert coordinator.limit == coordinator.estimate == 55  # 33 streams cost 0.6 of the machine


def test_a_ticket_is_used_once() -> None:
    coordinator = local()
    assert not asyncio.run(coordinator.ticket_used(b"ticket"))
    coordinator.use_ticket(b"ticket", 0.0)
    assert asyncio.run(coordinator.ticket_used(b"ticket"))
