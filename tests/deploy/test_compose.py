"""compose.yaml and its variants match the published schema and the other files, and expose one port."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from loadtest.failover.proxies import SHIPPED_REPLICAS
from server.settings import Settings
from tests.support.audio.speech import ROOT
from tests.support.needs import need_package

COMPOSE = ROOT / "deploy" / "compose"
FILES = sorted(COMPOSE.glob("compose*.yaml"))
MAIN: dict[str, Any] = yaml.safe_load((COMPOSE / "compose.yaml").read_text())
SERVICES = MAIN["services"]
REPLICAS = [f"replica-{number + 1}" for number in range(SHIPPED_REPLICAS)]
FLUSH_S = 10.0  # for the closes after a drain and the exit of the process


def schema() -> dict[str, Any]:
    """Return the Compose specification included in check-jsonschema."""
    need_package("check_jsonschema")
    text = (files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json").read_text()
    found: dict[str, Any] = json.loads(text)
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_compose_files_match_the_specification(path: Path) -> None:
    jsonschema.validate(yaml.safe_load(path.read_text()), schema())


def test_the_specification_rejects_an_unknown_key() -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"services": {"replica-1": {"imagee": "tutti"}}}, schema())


def test_haproxy_names_every_replica_of_compose() -> None:
    named = re.findall(
        r"^    server (\S+) (\S+):8080$", (ROOT / "deploy/haproxy/haproxy.cfg").read_text(), re.MULTILINE
    )
    assert [name for name, _ in named] == [host for _, host in named] == REPLICAS
    assert set(REPLICAS) <= set(SERVICES)


@pytest.mark.parametrize("name", REPLICAS)
def test_replicas_are_read_only_without_capabilities_and_without_ports(name: str) -> None:
    replica = SERVICES[name]
    assert replica["read_only"]
    assert replica["cap_drop"] == ["ALL"]
    assert replica["networks"] == ["inside"]
    assert MAIN["networks"]["inside"]["internal"]
    assert "ports" not in replica
    assert replica["deploy"]["resources"]["limits"]["memory"]
    assert any(place.startswith("/tmp") for place in replica["tmpfs"])


def test_the_grace_period_covers_the_drain() -> None:
    replica = SERVICES["replica-1"]
    drain_s = float(default_of(replica["environment"]["TUTTI_DRAIN_TIMEOUT_S"]))
    grace_s = float(default_of(replica["stop_grace_period"]).removesuffix("s"))
    assert grace_s >= drain_s + FLUSH_S
    assert float(SERVICES["haproxy"]["stop_grace_period"].removesuffix("s")) >= grace_s
    Settings(drain_timeout_s=drain_s)


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
    for name, service in SERVICES.items():
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


def test_the_variant_with_a_model_mounts_it_read_only_and_names_it() -> None:
    services = yaml.safe_load((COMPOSE / "compose.model.yaml").read_text())["services"]
    assert sorted(services) == REPLICAS
    for service in services.values():
        [volume] = service["volumes"]
        assert volume["read_only"]
        assert not volume["bind"]["create_host_path"]
        assert service["environment"]["TUTTI_MODEL"].startswith(f"{volume['target']}/${{MODEL:?")
        assert set(service["environment"]) == {"TUTTI_MODEL"}
