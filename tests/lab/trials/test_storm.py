"""Bursts of short connections to a small real server: streams accepted afterwards, and criteria."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from loadtest.errors import BadSettings
from loadtest.reports.criteria import unmet
from tests.support.servers.live_server import LiveServer
from tutti_asr_lab.trials.scenarios import storm

Start = Callable[..., LiveServer]


def test_streams_after_bursts_are_accepted(live_server: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storm, "MINUTE_S", 0.0)
    server = live_server(max_streams="auto")
    plan = storm.Plan(clients=100, within_s=0.5, storms=2, streams=10, per_s=10.0)
    found = asyncio.run(storm.campaign(f"ws://{server.host}", plan, "c"))
    assert sum(found.storm_statuses.values()) == 200, "every client got a response"
    assert found.steady_statuses == {101: 10}
    assert found.limit_after_storms >= 0.9 * found.limit_before
    assert not found.bars[0].found, unmet(found.bars)
    assert "Responses to the storms: 101: " in storm.markdown(found)
    server.wait_idle()


@pytest.mark.parametrize("wrong", [{"clients": 0}, {"within_s": 0.0}, {"storms": 0}, {"streams": 0}, {"per_s": -1.0}])
def test_an_invalid_plan_is_rejected(wrong: dict[str, float]) -> None:
    with pytest.raises(BadSettings):
        storm.Plan(**wrong)  # type: ignore[arg-type]
