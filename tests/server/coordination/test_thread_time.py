"""`ThreadTime`: computing and waiting for a core count, sleeping does not."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from server.coordination.admission import ThreadTime
from tests.support.needs import missing


def test_computing_and_waiting_count_and_sleeping_does_not() -> None:
    if not Path("/proc/self/schedstat").exists():
        missing("the system does not tell how long a thread waits for a core")
    busy, computed_s = ThreadTime(), time.thread_time()
    began_s = busy()
    while time.thread_time() - computed_s < 0.05:
        pass
    worked_s = busy() - began_s
    assert worked_s > 0.04
    time.sleep(0.2)
    assert busy() - began_s - worked_s < 0.1


def test_without_schedstat_only_computing_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise FileNotFoundError

    monkeypatch.setattr(os, "open", refuse)
    assert ThreadTime()() == pytest.approx(time.thread_time(), abs=0.05)
