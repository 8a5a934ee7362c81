"""The load that HPA and KEDA scale by, computed by promtool from the metrics of real, busy servers."""

from __future__ import annotations

import contextlib
import math
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.support.audio.speech import ROOT
from tests.support.deployment.chart import of_kind, rendered
from tests.support.deployment.prometheus import need
from tests.support.servers.live_server import LiveServer
from tutti_asr_lab.trials.autoscaling import ScalingRule, load_in_replicas

Start = Callable[..., LiveServer]
STEREO = {"channels": 2, "multichannel": "true"}
GAUGES = ("tutti_sessions_active", "tutti_sessions_max", "tutti_sessions_draining")
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
    """Return the gauges of a server as constant series with the labels of a ServiceMonitor."""
    found = []
    for family in text_string_to_metric_families(httpx.get(f"http://{server.host}/metrics").text):
        for sample in family.samples if family.name in GAUGES else ():
            named = sample.labels | {"namespace": "speech", "service": "tutti", "pod": pod} | labels
            text = ", ".join(f'{name}="{value}"' for name, value in named.items())
            found.append({"series": f"{sample.name}{{{text}}}", "values": f"{sample.value:g}x5"})
    return found


def check(folder: Path, given: list[dict[str, str]], load: float | None) -> None:
    """Evaluate both queries with promtool; None: no result, on which an autoscaler changes nothing."""
    expected = [] if load is None else [{"labels": "{}", "value": load}]
    checks = [{"expr": query, "eval_time": "2m", "exp_samples": expected} for query in (keda_query(), adapter_query())]
    test = {"interval": "30s", "input_series": given, "promql_expr_test": checks}
    file = folder / "test.yml"
    file.write_text(yaml.safe_dump({"rule_files": [], "evaluation_interval": "30s", "tests": [test]}))
    words = [need("promtool"), "test", "rules", str(file)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


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
        assert load_in_replicas([(7, 10), (0, 10)]) == 0.7, "by the function of the simulation"
        check(tmp_path, series(draining, "c"), None)


@pytest.mark.parametrize(
    ("channels", "replicas", "wanted"), [([4, 4, 4], 3, 2), ([9, 9, 9], 3, 5), ([10, 10], 2, 4), ([1, 1, 1, 1], 4, 1)]
)
def test_the_target_leaves_four_tenths_free(tmp_path: Path, channels: list[int], replicas: int, wanted: int) -> None:
    """The formula of the autoscalers: load over target, rounded up; at least `minReplicas` remain."""
    given = [
        {"series": f'{name}{{namespace="speech", service="tutti", pod="{pod}"}}', "values": f"{value}x5"}
        for pod, count in enumerate(channels)
        for name, value in (("tutti_sessions_active", count), ("tutti_sessions_max", 10))
    ]
    load = load_in_replicas((count, 10) for count in channels)
    assert load == sum(channels) / 10
    check(tmp_path, given, load)
    [trigger] = scaled_object()["triggers"]
    assert trigger["metricType"] == "AverageValue"
    assert len(channels) == replicas
    assert ScalingRule(fill=float(trigger["metadata"]["threshold"])).wanted(load) == wanted


def test_the_simulated_rule_is_that_of_the_chart() -> None:
    spec = of_kind(rendered(autoscaling={"by": "hpa"}), "HorizontalPodAutoscaler")["spec"]
    [metric], up, down = spec["metrics"], spec["behavior"]["scaleUp"], spec["behavior"]["scaleDown"]
    percent = {each["value"] for policy in (up, down) for each in policy["policies"] if each["type"] == "Percent"}
    rule = ScalingRule()
    assert float(metric["external"]["target"]["averageValue"]) == rule.fill
    assert (spec["minReplicas"], spec["maxReplicas"]) == (rule.least, rule.most)
    assert percent == {rule.up_percent, rule.down_percent}
    assert {each["periodSeconds"] for policy in (up, down) for each in policy["policies"]} == {rule.period_s}
    assert down["stabilizationWindowSeconds"] == rule.down_window_s


def test_scaling_is_fast_up_and_takes_minutes_down() -> None:
    behaviors = [
        of_kind(rendered(autoscaling={"by": "hpa"}), "HorizontalPodAutoscaler")["spec"]["behavior"],
        scaled_object()["advanced"]["horizontalPodAutoscalerConfig"]["behavior"],
    ]
    assert behaviors[0] == behaviors[1]
    up, down = behaviors[0]["scaleUp"], behaviors[0]["scaleDown"]
    assert up == {"stabilizationWindowSeconds": 0, "policies": [{"type": "Percent", "value": 100, "periodSeconds": 60}]}
    replicas, seconds = 20, float(down["stabilizationWindowSeconds"])
    steps = {each["type"]: each["value"] for each in down["policies"]}
    while replicas > 3:
        replicas -= max(steps["Pods"], math.floor(replicas * steps["Percent"] / 100))
        seconds += 60
    assert seconds <= 15 * 60
