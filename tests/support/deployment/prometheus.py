"""A real Prometheus with the shipped rules, and a real Alertmanager with the shipped routes, on free ports."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import httpx
import yaml
from prometheus_client.parser import text_string_to_metric_families

from loadtest.served import free_port
from tests.support.audio.speech import ROOT
from tests.support.needs import missing

SHIPPED = ROOT / "deploy" / "prometheus"
RULES = SHIPPED / "rules.yml"
WITHIN_S = 30.0
T = TypeVar("T")


def need(program: str) -> str:
    """Return the path of a program; if it is missing, skip the test, or fail in CI."""
    found = shutil.which(program)
    if found is None:
        missing(f"{program} not installed")
    return found


def wait_for(look: Callable[[], T], what: str) -> T:
    """Return the first result of `look` that is true. Raises: AssertionError after `WITHIN_S`."""
    end_s = time.monotonic() + WITHIN_S
    while not (found := look()):
        assert time.monotonic() < end_s, what
        time.sleep(0.2)
    return found


def promtool(*words: str, folder: Path = SHIPPED, text: bytes = b"") -> str:
    """Run promtool on these words, or on a text; returns its complaints. Raises: AssertionError if it fails."""
    done = subprocess.run(
        [need("promtool"), *words], cwd=folder, input=text, capture_output=True, timeout=WITHIN_S, check=False
    )
    assert not done.returncode or text, (done.stdout + done.stderr).decode()
    return done.stderr.decode()


def constant_series(exposition: str, names: Sequence[str], **labels: str) -> list[dict[str, str]]:
    """Return gauges of a server as series of promtool that are constant for fifteen minutes, with these labels."""
    samples = (sample for family in text_string_to_metric_families(exposition) for sample in family.samples)
    return [
        {"series": f"{sample.name}{_labels(sample.labels | labels)}", "values": f"{sample.value:g}x30"}
        for sample in samples
        if sample.name in names
    ]


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ", ".join(f'{name}="{value}"' for name, value in labels.items()) + "}"


def evaluate(
    folder: Path,
    series: list[dict[str, str]],
    expected: Mapping[str, Mapping[str, float]],
    *,
    rules: Sequence[str] = (),
) -> None:
    """Evaluate expressions with promtool after ten minutes; `expected`: values by labels, by expression."""
    checks = [
        {
            "expr": expression,
            "eval_time": "10m",
            "exp_samples": [{"labels": labels, "value": value} for labels, value in values.items()],
        }
        for expression, values in expected.items()
    ]
    test = {"interval": "30s", "input_series": series, "promql_expr_test": checks}
    document = {"rule_files": [*rules], "evaluation_interval": "30s", "tests": [test]}
    (folder / "test.yml").write_text(yaml.safe_dump(document))
    promtool("test", "rules", "test.yml", folder=folder)


class _Program:
    """A process with its log in a folder."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._log = (folder / f"{Path(words[0]).name}.log").open("wb")
        self._process = subprocess.Popen(words, stdout=self._log, stderr=self._log)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=WITHIN_S)
        self._log.close()


class Prometheus(_Program):
    """A Prometheus server that scrapes one target; `alertmanager` is a host with port that gets its alerts."""

    def __init__(self, folder: Path, target: str, rules: Path = RULES, alertmanager: str | None = None) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        asked = yaml.safe_load((SHIPPED / "prometheus.yml").read_text())
        asked["global"] = {"scrape_interval": "500ms", "evaluation_interval": "500ms"}
        asked["rule_files"] = [str(rules)]
        asked["scrape_configs"] = [{"job_name": "tutti", "static_configs": [{"targets": [target]}]}]
        [managers] = asked["alerting"]["alertmanagers"]
        managers["static_configs"] = [{"targets": [alertmanager] if alertmanager else []}]
        config = folder / "prometheus.yml"
        config.write_text(yaml.safe_dump(asked))
        super().__init__(
            folder,
            need("prometheus"),
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={self.url.removeprefix('http://')}",
        )

    def ask(self, expr: str) -> list[dict[str, Any]]:
        try:
            answer = httpx.get(f"{self.url}/api/v1/query", params={"query": expr}, timeout=WITHIN_S)
        except httpx.TransportError:
            return []
        if answer.status_code != 200:
            assert answer.status_code == 503, answer.text  # starting
            return []
        return list(answer.json()["data"]["result"])

    def wait_for(self, expr: str) -> list[dict[str, Any]]:
        """Wait for a result and return it."""
        return wait_for(lambda: self.ask(expr), f"no data for {expr}")


class Alertmanager(_Program):
    """An Alertmanager with the shipped routes, without their waits, that calls `webhook`."""

    def __init__(self, folder: Path, webhook: str) -> None:
        self.host = f"127.0.0.1:{free_port()}"
        asked = yaml.safe_load((SHIPPED / "alertmanager.yml").read_text())
        for route in (asked["route"], *asked["route"]["routes"]):
            route |= {"group_wait": "100ms", "group_interval": "1s"}
        [receiver] = asked["receivers"]
        [called] = receiver["webhook_configs"]
        assert called.pop("url_file") == "/run/secrets/alert_webhook"  # newer than the package of Debian 12
        called["url"] = webhook
        config = folder / "alertmanager.yml"
        config.write_text(yaml.safe_dump(asked))
        super().__init__(
            folder,
            need("prometheus-alertmanager"),
            f"--config.file={config}",
            f"--storage.path={folder / 'alerts'}",
            "--cluster.listen-address=",
            f"--web.listen-address={self.host}",
        )
