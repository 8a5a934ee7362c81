"""The gauge of open streams and its limit both count channels: stereo calls to a real server trigger the alert."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.support.needs import missing
from tests.support.servers.live_server import LiveServer
from tests.support.servers.spelling import spell

Start = Callable[..., LiveServer]
RULES = Path(__file__).parents[3] / "deploy" / "prometheus" / "rules.yml"
STEREO = {"channels": 2, "multichannel": "true"}
GAUGES = ("tutti_sessions_active", "tutti_sessions_max", "tutti_estimated_session_capacity")
SLOTS = 10


def series_of(text: str) -> list[dict[str, str]]:
    """Return the session metrics of a server as constant series of fifteen minutes."""
    found = []
    for family in text_string_to_metric_families(text):
        if family.name in GAUGES:
            for sample in family.samples:
                labels = ", ".join(f'{name}="{value}"' for name, value in {"instance": "a", **sample.labels}.items())
                found.append({"series": f"{sample.name}{{{labels}}}", "values": f"{sample.value:g}x30"})
    return found


def check_alert(folder: Path, text: str, *, share: float, fires: bool) -> None:
    """Evaluate the shipped rules on these metrics with promtool."""
    program = shutil.which("promtool")
    if program is None:
        missing("promtool not installed")
    recorded = "tutti:sessions_active:share"
    alerts = [{"labels": 'ALERTS{alertname="TuttiNearCapacity", alertstate="firing"}', "value": 1}] if fires else []
    firing = 'sum by (alertname, alertstate) (ALERTS{alertname="TuttiNearCapacity", alertstate="firing"})'
    of_share = [{"labels": f'{recorded}{{instance="a"}}', "value": share}]
    checks = [
        {"expr": recorded, "eval_time": "10m", "exp_samples": of_share},
        {"expr": firing, "eval_time": "10m", "exp_samples": _unnamed(alerts)},
    ]
    test = {"interval": "30s", "input_series": series_of(text), "promql_expr_test": checks}
    asked = {"rule_files": [str(RULES)], "evaluation_interval": "30s", "tests": [test]}
    file = folder / "test.yml"
    file.write_text(yaml.safe_dump(asked))
    done = subprocess.run(
        [program, "test", "rules", str(file)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _unnamed(alerts: list[dict[str, object]]) -> list[dict[str, object]]:
    """Return the alerts without the metric name in their labels, since a sum has none."""
    return [{**alert, "labels": str(alert["labels"]).removeprefix("ALERTS")} for alert in alerts]


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
        check_alert(tmp_path, text, share=share, fires=fires)
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
