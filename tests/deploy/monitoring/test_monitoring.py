"""A real Prometheus scrapes a real server: every query of the dashboard and every alert has data and a runbook."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import yaml

from tests.support.deployment.prometheus import RULES, WITHIN_S, Prometheus, need, promtool
from tests.support.servers.live_server import LiveServer
from tests.support.servers.recognizers.spelling import silence, spell

ROOT = Path(__file__).parents[3]
DASHBOARD = ROOT / "deploy" / "grafana" / "dashboards" / "tutti.json"


def rules(kind: str) -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"] if kind in rule]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    need("prometheus")
    with LiveServer() as server:
        prometheus = Prometheus(tmp_path_factory.mktemp("prometheus"), server.host)
        try:
            prometheus.wait_for("up == 1")
            for words in ("one small step", "a giant leap"):
                with server.listen(interim_results="true") as client:
                    client.send(np.concatenate([spell(words), silence(1.0)]))
                    client.finish()
            prometheus.wait_for("rate(tutti_sessions_total[5s]) > 0")
            yield prometheus
        finally:
            prometheus.close()


def test_every_query_of_the_dashboard_has_data(watched: Prometheus) -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    queries = [query for panel in panels for query in panel.get("targets", ())]
    assert len(queries) > 40
    for query in queries:
        expression = query["expr"].replace("$instance", ".*").replace("$__rate_interval", "1m")
        labels = watched.wait_for(expression)[0]["metric"]
        legend = re.sub(r"{{(\w+)}}", lambda name, labels=labels: labels.get(name[1], ""), query["legendFormat"])
        assert legend.strip(), "every series has a legend"


def test_every_recorded_series_and_every_operand_of_an_alert_has_data(watched: Prometheus) -> None:
    for rule in rules("record"):
        watched.wait_for(rule["record"])
    for rule in rules("alert"):
        for side in re.split(r"\bunless on \(instance\)", rule["expr"]):
            watched.wait_for(re.split(r"\s(?:>|==)\s", side)[0])


def test_the_rules_are_loaded_and_none_fails(watched: Prometheus) -> None:
    answer = httpx.get(f"{watched.url}/api/v1/rules", timeout=WITHIN_S).json()
    loaded = [rule for group in answer["data"]["groups"] for rule in group["rules"]]
    assert len(loaded) == len(rules("record")) + len(rules("alert"))
    assert [rule["name"] for rule in loaded if rule.get("lastError")] == []


def test_alerts_fire_on_their_conditions() -> None:
    promtool("test", "rules", "rules_test.yml")
    tested = RULES.with_name("rules_test.yml").read_text()
    assert [rule["alert"] for rule in rules("alert") if rule["alert"] not in tested] == []


def test_prometheus_accepts_the_shipped_configuration() -> None:
    promtool("check", "config", "prometheus.yml")


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    names = {rule["alert"] for rule in rules("alert")}
    assert {page.stem for page in (ROOT / "docs" / "runbooks").glob("Tutti*.md")} == names
    for rule in rules("alert"):
        page = ROOT / rule["annotations"]["runbook"]
        assert page.stem == rule["alert"]
        for heading in ("## What it means", "## Look", "## Do"):
            assert heading in page.read_text(), page.name


def test_panels_of_the_dashboard_have_titles_of_their_own() -> None:
    titles = [panel["title"] for panel in json.loads(DASHBOARD.read_text())["panels"]]
    assert len(titles) == len(set(titles)) > 20


def test_the_metrics_are_well_formed(watched: Prometheus) -> None:
    target = watched.ask("up")[0]["metric"]["instance"]
    said = promtool("check", "metrics", text=httpx.get(f"http://{target}/metrics", timeout=WITHIN_S).content)
    assert [line for line in said.splitlines() if line.startswith("tutti_")] == []
