"""Bursts of short connections to a small real server: streams accepted afterwards, and criteria."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from loadtest.reports.criteria import unmet
from tests.support.servers.live_server import LiveServer
from tutti_asr_lab.trials.scenarios import storm
from tutti_asr_lab.trials.trial import markdown

Start = Callable[..., LiveServer]


def test_streams_after_bursts_are_accepted(live_server: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storm, "MINUTE_S", 0.0)
    server = live_server(max_streams="auto")
    plan = storm.Plan(clients=100, within_s=0.5, storms=2, streams=10, per_s=10.0)
    found = asyncio.run(storm.campaign(f"ws://{server.host}", plan))
    assert sum(found.figures["storm_statuses"].values()) == 200, "every client got a response"
    assert found.figures["steady_statuses"] == {101: 10}
    before, after, _ = found.figures["limits"]
    assert after >= 0.9 * before
    assert not found.bars[0].found, unmet(found.bars)
    assert "Responses to the storms: 101: " in markdown(found, "")
    server.wait_idle()
