"""Calls whose options were registered before they come."""

from __future__ import annotations

import pytest

from server.coordination.expected_calls import ExpectedCall, ExpectedCalls
from server.errors import NotAllowed, TooManyStreams
from tests.support.servers.fakes import FakeClock


def test_a_call_is_expected_for_its_time_and_a_full_table_forgets_late_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.coordination.expected_calls.MAX_EXPECTED_OF_KEY", 2)
    clock = FakeClock()
    calls = ExpectedCalls(clock)
    for uuid, ttl_s in (("one", 10.0), ("two", 20.0)):
        calls.add(ExpectedCall(uuid, "key", ()), ttl_s)
    clock.advance(10.5)
    calls.add(ExpectedCall("three", "key", ()), 5.0)
    assert len(calls) == 2
    with pytest.raises(TooManyStreams):
        calls.add(ExpectedCall("four", "key", ()), 5.0)
    assert calls.take("one") is None
    clock.advance(5.5)
    assert calls.take("three") is None, "late"
    assert calls.take("two") is not None
    assert len(calls) == 0


def test_the_last_registration_of_a_key_counts_and_another_key_has_none() -> None:
    calls = ExpectedCalls(FakeClock())
    calls.add(ExpectedCall("one", "key", (("language", "en"),)), 10.0)
    calls.add(ExpectedCall("one", "key", (("language", "zh"),)), 10.0)
    with pytest.raises(NotAllowed):
        calls.add(ExpectedCall("one", "other", ()), 10.0)
    assert calls.take("one", "other") is None
    assert len(calls) == 1
    assert calls.take("one") == ExpectedCall("one", "key", (("language", "zh"),))
