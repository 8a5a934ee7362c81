"""Engine health, and lack of file descriptors."""

from __future__ import annotations

import errno
import os

import pytest

from server.operations.watchdog import FAILURES, EngineHealth, free_descriptor


def test_engine_with_good_batches_is_kept() -> None:
    health = EngineHealth(60.0)
    for look in range(1_000):
        assert health.look(moves=True, batches=look, failed=look * 3) is None


def test_stalled_engine_is_lost() -> None:
    assert EngineHealth(60.0).look(moves=False, batches=0, failed=0) == "no step has ended for 60 s"


def test_an_engine_that_has_ended_is_lost_for_its_own_reason() -> None:
    reason = EngineHealth(60.0).look(moves=False, ended="the device is gone", batches=0, failed=0)
    assert reason == "the engine has ended: the device is gone"


def test_failures_count_only_since_the_last_good_batch() -> None:
    health = EngineHealth(60.0)
    assert health.look(moves=True, batches=5, failed=0) is None
    assert health.look(moves=True, batches=5, failed=FAILURES - 1) is None
    assert health.look(moves=True, batches=6, failed=FAILURES + 1) is None, "a successful step resets the count"
    assert health.look(moves=True, batches=6, failed=2 * FAILURES) is None
    assert health.look(moves=True, batches=6, failed=2 * FAILURES + 1) is not None


@pytest.mark.parametrize(("number", "free"), [(errno.EMFILE, False), (errno.ENFILE, False), (errno.EBADF, True)])
def test_only_emfile_and_enfile_count_as_shortage(monkeypatch: pytest.MonkeyPatch, number: int, *, free: bool) -> None:
    def refuse(_: int) -> int:
        raise OSError(number, "")

    assert free_descriptor()
    monkeypatch.setattr(os, "dup", refuse)
    assert free_descriptor() is free
