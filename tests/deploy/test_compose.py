"""compose.yaml and its variants match the published schema and the other files, and expose one port."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import pytest
import yaml

from server.settings import Settings
from tests.support.audio.speech import ROOT
from tests.support.deployment.chart import longest_drain_s
from tests.support.needs import need_package

COMPOSE = ROOT / "deploy" / "compose"
FILES = sorted(COMPOSE.glob("compose*.yaml"))
MAIN: dict[str, Any] = yaml.safe_load((COMPOSE / "compose.yaml").read_text())
SERVICES = MAIN["services"]
REPLICA = SERVICES["replica"]


def schema() -> dict[str, Any]:
    """Return the Compose specification included in check-jsonschema."""
    need_package("check_jsonschema")
    text = (files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json").read_text()
    found: dict[str, Any] = json.loads(text)
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_compose_files_match_the_specification(path: Path) -> None:
    jsonschema.validate(yaml.safe_load(path.read_text()), schema())


def test_haproxy_and_prometheus_find_replicas_by_the_name_of_the_service() -> None:
    config = (ROOT / "deploy/haproxy/haproxy.cfg").read_text()
    [(most, name)] = re.findall(r"^    server-template replica- (\d+) (\w+):8080$", config, re.MULTILINE)
    assert SERVICES[name]["deploy"]["replicas"] < int(most)
    assert "container_name" not in SERVICES[name], "it cannot be scaled"
    assert "ports" not in SERVICES[name], "a host port is for one replica"
    [scraped, _] = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())["scrape_configs"]
    assert scraped["dns_sd_configs"][0]["names"] == [name]
    assert str(scraped["dns_sd_configs"][0]["port"]) == REPLICA["environment"]["TUTTI_METRICS_PORT"]
    assert float(REPLICA["stop_grace_period"].partition(":-")[2].rstrip("s}")) < 60 * hold_minutes(config, "obsolete")


def hold_minutes(config: str, reason: str) -> float:
    """Return how long HAProxy keeps a server whose name is gone."""
    [found] = re.findall(rf"^    hold {reason} (\d+)m$", config, re.MULTILINE)
    return float(found)


def test_replicas_are_read_only_without_capabilities_and_without_ports() -> None:
    assert REPLICA["read_only"]
    assert REPLICA["cap_drop"] == ["ALL"]
    assert REPLICA["networks"] == ["inside"]
    assert MAIN["networks"]["inside"]["internal"]
    assert "ports" not in REPLICA
    assert REPLICA["deploy"]["resources"]["limits"]["memory"]
    assert any(place.startswith("/tmp") for place in REPLICA["tmpfs"])


def test_the_grace_period_covers_the_drain() -> None:
    drain_s = float(default_of(REPLICA["environment"]["TUTTI_DRAIN_TIMEOUT_S"]))
    grace_s = float(default_of(REPLICA["stop_grace_period"]).removesuffix("s"))
    assert grace_s >= longest_drain_s(Settings(drain_timeout_s=drain_s))
    assert float(SERVICES["haproxy"]["stop_grace_period"].removesuffix("s")) >= grace_s


def default_of(variable: str) -> str:
    """Return the default of `${NAME:-default}`."""
    match = re.fullmatch(r"\$\{\w+:-(.+)\}", variable)
    assert match
    return match[1]


def test_only_port_8080_of_haproxy_is_published_beyond_loopback() -> None:
    published = {name: service.get("ports", []) for name, service in SERVICES.items()}
    for name, ports in published.items():
        for port in ports:
            assert port.startswith("127.0.0.1:") or (name == "haproxy" and port.endswith(":8080"))


def test_images_have_exact_tags_and_secrets_are_files() -> None:
    services = [each for path in FILES for each in yaml.safe_load(path.read_text())["services"].items()]
    for name, service in services:
        if "image" not in service:
            continue
        tag = service["image"].partition(":")[2]
        assert tag not in ("", "latest"), name
    for secret in MAIN["secrets"].values():
        assert secret["file"].startswith("./secrets/")
    assert sorted(path.name for path in (COMPOSE / "secrets").iterdir() if path.name != ".gitignore") == []


def test_mounted_files_exist() -> None:
    for service in SERVICES.values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (COMPOSE / source).exists(), source


def test_variants_change_the_service_of_the_replicas() -> None:
    for path in FILES:
        services = yaml.safe_load(path.read_text())["services"]
        assert set(services) <= set(SERVICES) | {"jaeger"}, path.name


def test_traces_go_to_the_collector_of_the_variant() -> None:
    services = yaml.safe_load((COMPOSE / "compose.traces.yaml").read_text())["services"]
    endpoint = services["replica"]["environment"]["OTEL_EXPORTER_OTLP_ENDPOINT"]
    assert urlsplit(endpoint).hostname in services
    assert set(services["jaeger"]["networks"]) == {"inside", "outside"}


def test_alertmanager_is_where_prometheus_sends_alerts() -> None:
    asked = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    [target] = asked["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"]
    manager = SERVICES[target.partition(":")[0]]
    [receiver] = yaml.safe_load((ROOT / "deploy/prometheus/alertmanager.yml").read_text())["receivers"]
    secret = receiver["webhook_configs"][0]["url_file"].rpartition("/")[2]
    assert manager["secrets"] == [secret]
    assert "outside" in manager["networks"], "the webhook is elsewhere"


def test_the_variant_with_a_model_mounts_it_read_only_and_names_it() -> None:
    [service] = yaml.safe_load((COMPOSE / "compose.model.yaml").read_text())["services"].values()
    [volume] = service["volumes"]
    assert volume["read_only"]
    assert not volume["bind"]["create_host_path"]
    assert service["environment"]["TUTTI_MODEL"].startswith(f"{volume['target']}/${{MODEL:?")
    assert set(service["environment"]) == {"TUTTI_MODEL"}
