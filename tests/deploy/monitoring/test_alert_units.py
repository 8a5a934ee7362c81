"""The gauge of open streams and its limit both count channels: stereo calls to a real server trigger the alert."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.support.deployment.prometheus import RULES, constant_series, evaluate
from tests.support.servers.live_server import LiveServer
from tests.support.servers.recognizers.spelling import spell

Start = Callable[..., LiveServer]
STEREO = {"channels": 2, "multichannel": "true"}
GAUGES = ("tutti_sessions_active", "tutti_resting_channels", "tutti_sessions_max", "tutti_estimated_session_capacity")
SLOTS = 10
FIRING = 'sum by (alertname, alertstate) (ALERTS{alertname="TuttiNearCapacity", alertstate="firing"})'


@pytest.mark.parametrize(
    ("calls", "share", "fires"),
    [
        ([STEREO] * 5, 1.0, True),
        ([*[STEREO] * 4, {}], 0.9, True),
        ([STEREO] * 4, 0.8, False),
        ([{"channels": 2}] * 5, 0.5, False),  # downmixed to one channel
    ],
)
def test_the_near_capacity_alert_counts_channels(
    live_server: Start, tmp_path: Path, calls: list[dict[str, object]], share: float, fires: bool
) -> None:
    server = live_server(max_streams=SLOTS)
    server.replica.metrics.estimated_capacity.set_function(lambda: 100.0)  # independent of this machine
    with contextlib.ExitStack() as opened:
        for query in calls:
            opened.enter_context(server.listen(**query))
        text = httpx.get(f"http://{server.host}/metrics").text
    alerts = {'{alertname="TuttiNearCapacity", alertstate="firing"}': 1.0} if fires else {}
    of_share = {'tutti:sessions_active:share{instance="a"}': share}
    expected = {"tutti:sessions_active:share": of_share, FIRING: alerts}
    evaluate(tmp_path, constant_series(text, GAUGES, instance="a"), expected, rules=[str(RULES)])
    server.wait_idle()
    assert server.metric('tutti_sessions_active{protocol="deepgram"}') == 0


def test_a_draining_replica_counts_its_remaining_channels(live_server: Start) -> None:
    server = live_server(max_streams=SLOTS)
    with server.listen(**STEREO) as call, server.listen():
        server.replica.sessions.draining = True
        assert server.metric("tutti_sessions_draining") == 3
        call.send(spell("left").repeat(2))
        call.finish()


def test_a_call_with_several_channels_counts_as_one_call(live_server: Start) -> None:
    server = live_server(max_streams=SLOTS)
    with server.listen(**STEREO) as call:
        call.finish()
    server.wait_idle()
    assert server.metric('tutti_sessions_total{outcome="completed",protocol="deepgram"}') == 1
