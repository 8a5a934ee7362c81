"""The load that HPA and KEDA scale by, computed by promtool from the metrics of real, busy servers."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.support.audio.speech import ROOT
from tests.support.deployment.chart import of_kind, rendered
from tests.support.deployment.prometheus import constant_series, evaluate
from tests.support.servers.live_server import LiveServer

Start = Callable[..., LiveServer]
STEREO = {"channels": 2, "multichannel": "true"}
GAUGES = ("tutti_sessions_active", "tutti_resting_channels", "tutti_sessions_max", "tutti_sessions_draining")
README = (ROOT / "deploy" / "README.md").read_text()


def scaled_object() -> dict[str, Any]:
    spec: dict[str, Any] = of_kind(rendered("envoy-gateway"), "ScaledObject")["spec"]
    return spec


def keda_query() -> str:
    [trigger] = scaled_object()["triggers"]
    return str(trigger["metadata"]["query"])


def adapter_query() -> str:
    """Return the query of the rule for prometheus-adapter in deploy/README.md, as the adapter fills it in."""
    [text] = re.findall(r"^```yaml adapter\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    [rule] = yaml.safe_load(text)["rules"]["external"]
    metric = of_kind(rendered(autoscaling={"by": "hpa"}), "HorizontalPodAutoscaler")["spec"]["metrics"][0]["external"]
    assert metric["metric"]["name"] == rule["name"]["as"]
    matchers = {"namespace": "speech", **metric["metric"]["selector"]["matchLabels"]}
    return str(rule["metricsQuery"]).replace(
        "<<.LabelMatchers>>", ",".join(f'{name}="{value}"' for name, value in matchers.items())
    )


def series(server: LiveServer, pod: str, **labels: str) -> list[dict[str, str]]:
    """Return the gauges of a server with the labels of a ServiceMonitor."""
    text = httpx.get(f"http://{server.host}/metrics").text
    return constant_series(text, GAUGES, **{"namespace": "speech", "service": "tutti", "pod": pod} | labels)


def check(folder: Path, given: list[dict[str, str]], load: float | None) -> None:
    """Evaluate both queries with promtool; None: no result, on which an autoscaler changes nothing."""
    expected = {} if load is None else {"{}": load}
    evaluate(folder, given, {keda_query(): expected, adapter_query(): expected})


def test_stereo_calls_count_twice_and_other_releases_and_draining_replicas_not_at_all(
    live_server: Start, tmp_path: Path
) -> None:
    busy, idle, draining = live_server(max_streams=10), live_server(max_streams=10), live_server(max_streams=10)
    with contextlib.ExitStack() as opened:
        for query in (STEREO, STEREO, STEREO, {}):
            opened.enter_context(busy.listen(**query))
        opened.enter_context(draining.listen())
        draining.replica.sessions.draining = True
        given = series(busy, "a") + series(idle, "b") + series(draining, "c")
        given += series(busy, "d", service="other") + series(busy, "e", namespace="elsewhere")
        check(tmp_path, given, 0.7)  # 7 of 10 channels of one replica, none of the other: 0.7 replicas' load
        check(tmp_path, series(draining, "c"), None)


@pytest.mark.parametrize("channels", [[4, 4, 4], [10, 10]])
def test_the_load_is_that_of_full_replicas(tmp_path: Path, channels: list[int]) -> None:
    given = [
        {"series": f'{name}{{namespace="speech", service="tutti", pod="{pod}"}}', "values": f"{value}x30"}
        for pod, count in enumerate(channels)
        for name, value in (("tutti_sessions_active", count), ("tutti_resting_channels", 3), ("tutti_sessions_max", 10))
    ]
    check(tmp_path, given, (sum(channels) - 3 * len(channels)) / 10)


def test_scaling_leaves_four_tenths_free_is_fast_up_and_takes_minutes_down() -> None:
    """The rule of docs/sizing.md, with which real replicas refused fewer than 1 % of the calls of a doubling load."""
    by_hpa = of_kind(rendered(autoscaling={"by": "hpa"}), "HorizontalPodAutoscaler")["spec"]
    by_keda = scaled_object()
    [metric], [trigger] = by_hpa["metrics"], by_keda["triggers"]
    target = {"type": "AverageValue", "averageValue": trigger["metadata"]["threshold"]}
    assert metric["external"]["target"] | {"averageValue": str(metric["external"]["target"]["averageValue"])} == target
    assert (float(target["averageValue"]), trigger["metricType"]) == (0.6, "AverageValue")
    assert (by_hpa["minReplicas"], by_hpa["maxReplicas"]) == (3, 20)
    behavior = by_keda["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert by_hpa["behavior"] == behavior
    assert behavior["scaleUp"] == {
        "stabilizationWindowSeconds": 0,
        "policies": [{"type": "Percent", "value": 100, "periodSeconds": 60}],
    }
    down = behavior["scaleDown"]
    assert down["stabilizationWindowSeconds"] == 300
    assert {each["type"]: (each["value"], each["periodSeconds"]) for each in down["policies"]} == {
        "Percent": (20, 60),
        "Pods": (1, 60),
    }
