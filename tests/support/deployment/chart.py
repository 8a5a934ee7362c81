"""The chart as Helm renders it, and checks of what it renders for extensions of Kubernetes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from deploy.helm import render
from server.http.uvicorn_server import SHUTDOWN_TIMEOUT_S
from server.models.registry import STOP_TIMEOUT_S
from server.operations.drain import FLUSH_TIMEOUT_S, SPREAD_S
from server.operations.logs import FLUSH_S
from server.settings import Settings
from tests.support.audio.speech import ROOT
from tests.support.needs import need_package

EXAMPLES = sorted((ROOT / "deploy" / "helm" / "examples").glob("*.yaml"))
SCHEMAS = Path(__file__).parent / "crd_schemas.json"
MODELS = {  # packages with models of the objects of operators
    "ScaledObject": "cloudcoil.models.keda.v1alpha1",
    "ServiceMonitor": "cloudcoil.models.prometheus_operator.v1",
    "PodMonitor": "cloudcoil.models.prometheus_operator.v1",
    "PrometheusRule": "cloudcoil.models.prometheus_operator.v1",
}
Manifest = dict[str, Any]


class RejectedValues(ValueError):
    """Values that Helm refuses, by the schema or by a template."""


def rendered(
    *examples: str,
    release: str = render.RELEASE,
    namespace: str = render.NAMESPACE,
    values: Sequence[str] = (),
    **given: Any,
) -> tuple[Manifest, ...]:
    """Return the manifests for examples by name, then texts as of `--set`, then values. Raises: RejectedValues."""
    helm = need_package("helm_python")
    merged: Manifest = {}
    for example in examples:
        merged = _merged(merged, yaml.safe_load((EXAMPLES[0].parent / f"{example}.yaml").read_text()))
    for text in values:
        merged = _merged(merged, helm.parse_set_string(text))
    try:
        text = render.render(_merged(merged, given), release=release, namespace=namespace)
    except helm.HelmError as error:
        raise RejectedValues(str(error)) from error
    return tuple(yaml.safe_load_all(text))


def _merged(first: Manifest, second: Manifest) -> Manifest:
    """Merge maps as Helm does: the second wins, maps within are merged."""
    both = {name for name in first if isinstance(first[name], dict) and isinstance(second.get(name), dict)}
    return first | second | {name: _merged(first[name], second[name]) for name in both}


def of_kind(manifests: Sequence[Manifest], kind: str) -> Manifest:
    """Return the only manifest of this kind."""
    [found] = [each for each in manifests if each["kind"] == kind]
    return found


def of_pod(manifests: Sequence[Manifest], moved: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables of the replica's container, with folders moved as in `moved`."""
    [container] = of_kind(manifests, "Deployment")["spec"]["template"]["spec"]["containers"]
    found = {each["name"]: each["value"] for each in container["env"]}
    for old, new in (moved or {}).items():
        found = {name: value.replace(old, new) for name, value in found.items()}
    return found


def validate_extension(manifest: Manifest) -> bool:
    """Check an object that is not of Kubernetes itself; returns whether it is one. Raises: ValueError."""
    kind = manifest["kind"]
    if kind in MODELS:
        getattr(need_package(MODELS[kind]), kind).model_validate(manifest)
        return True
    if kind in crd_schemas():
        try:
            jsonschema.validate(manifest, crd_schemas()[kind])
        except jsonschema.ValidationError as error:
            raise ValueError(f"{error.json_path}: {error.message}") from error
        return True
    return False


@cache
def crd_schemas() -> dict[str, Manifest]:
    """Return the schemas of the Gateway API and of Envoy Gateway by kind (crd_schemas.py)."""
    found: dict[str, Manifest] = json.loads(SCHEMAS.read_text(encoding="utf-8"))["schemas"]
    return found


def longest_drain_s(settings: Settings) -> float:
    """Return the longest time from SIGTERM to the exit of a server (docs/faults.md)."""
    return settings.drain_timeout_s + SPREAD_S + FLUSH_TIMEOUT_S + SHUTDOWN_TIMEOUT_S + STOP_TIMEOUT_S + FLUSH_S
