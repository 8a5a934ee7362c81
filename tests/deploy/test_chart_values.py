"""Values of the chart: every file that a setting names can be mounted, and what Kubernetes would refuse is refused."""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath
from typing import Any, get_args

import pytest

from server.settings import Settings
from tests.deploy.test_chart import VERSIONS
from tests.support.deployment.chart import Manifest, RejectedValues, longest_drain_s, of_kind, of_pod, rendered
from tests.support.deployment.chart_schema import KEY_FILES, TARGET
from tests.support.needs import need_package

PATHS = sorted(
    name for name, field in Settings.model_fields.items() if Path in (field.annotation, *get_args(field.annotation))
)
OF_KEYS = sorted(f"{name}_file" for name in KEY_FILES)


def pod_of(manifests: tuple[Manifest, ...]) -> Manifest:
    found: Manifest = of_kind(manifests, "Deployment")["spec"]["template"]["spec"]
    return found


def mount_of(manifests: tuple[Manifest, ...], path: str) -> Manifest:
    """Return the mount that holds a path, with its volume under `volume`; the paths of both exist."""
    pod = pod_of(manifests)
    [container] = pod["containers"]
    [mount] = [each for each in container["volumeMounts"] if PurePosixPath(path).is_relative_to(each["mountPath"])]
    [volume] = [each for each in pod["volumes"] if each["name"] == mount["name"]]
    return mount | {"volume": volume}


def test_settings_with_paths_are_found() -> None:
    assert {"lm", "grammars", "models_file", "written_forms", "usage_log", "turn_model", *OF_KEYS} <= set(PATHS)


@pytest.mark.parametrize("name", PATHS)
def test_every_file_that_a_setting_names_can_be_mounted_or_is_refused_by_name(name: str) -> None:
    validate = need_package("kubernetes_validate")
    if name in OF_KEYS:
        with pytest.raises(RejectedValues, match=name):
            rendered(settings={name: "/data/file"})
        manifests = rendered(keys={"files": [name.removesuffix("_file")]})
        path = of_pod(manifests)[f"TUTTI_{name.upper()}"]
        assert mount_of(manifests, path)["volume"]["secret"]
        return
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    mounts = [{"name": "data", "mountPath": "/data"}]
    manifests = rendered(settings={name: "/data/file"}, extraVolumes=[volume], extraVolumeMounts=mounts)
    for manifest in manifests:
        validate.validate(manifest, VERSIONS[-1], strict=True)
    assert of_pod(manifests)[f"TUTTI_{name.upper()}"] == "/data/file"
    assert mount_of(manifests, "/data/file")["volume"] == volume


def test_short_files_are_values_and_their_change_restarts_the_pods() -> None:
    text = '[[model]]\nname = "en"\npath = "/models/en"\n'
    given: Any = {"files": {"models.toml": text}, "settings": {"models_file": "/config/models.toml"}}
    manifests, changed = rendered(**given), rendered(**given | {"files": {"models.toml": text + "\n"}})
    mount = mount_of(manifests, "/config/models.toml")
    config = of_kind(manifests, "ConfigMap")
    assert mount["volume"]["configMap"]["name"] == config["metadata"]["name"]
    assert config["data"] == {"models.toml": text}
    notes = [
        of_kind(each, "Deployment")["spec"]["template"]["metadata"]["annotations"] for each in (manifests, changed)
    ]
    assert notes[0] != notes[1]


@pytest.mark.parametrize(
    ("usage", "volume"),
    [
        ({"claim": "usage"}, {"persistentVolumeClaim": {"claimName": "usage"}}),
        ({"size": "1Gi"}, {"emptyDir": {"sizeLimit": "1Gi"}}),
    ],
)
def test_the_usage_log_is_a_writable_folder(usage: Manifest, volume: Manifest) -> None:
    mount = mount_of(rendered(settings={"usage_log": "/usage"}, usageLog=usage), "/usage")
    assert mount["volume"] == {"name": "usage-log"} | volume
    assert not mount.get("readOnly")
    with pytest.raises(RejectedValues, match="usageLog"):
        rendered(settings={"usage_log": "/usage"})
    with pytest.raises(RejectedValues, match="usage_log"):
        rendered(settings={"usage_log": "usage"}, usageLog=usage)


def test_several_models_come_from_one_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    models = ["en=/models/english", "es=/models/spanish"]
    manifests = rendered(settings={"model": models}, model={"claim": "shared"})
    assert mount_of(manifests, "/models/english")["volume"]["persistentVolumeClaim"]["claimName"] == "shared"
    monkeypatch.setenv("TUTTI_MODEL", of_pod(manifests)["TUTTI_MODEL"])
    assert [(each.name, str(each.path)) for each in Settings().models] == [
        ("en", "/models/english"),
        ("es", "/models/spanish"),
    ]


def test_the_vosk_port_is_reachable() -> None:
    manifests = rendered(settings={"vosk_port": 2_700})
    [container] = pod_of(manifests)["containers"]
    assert {"name": "vosk", "containerPort": 2_700} in container["ports"]
    assert {"name": "vosk", "port": 2_700, "targetPort": "vosk"} in of_kind(manifests, "Service")["spec"]["ports"]
    [rule] = [each for each in of_kind(manifests, "NetworkPolicy")["spec"]["ingress"] if len(each["ports"]) > 1]
    assert {"protocol": "TCP", "port": "vosk"} in rule["ports"]


@pytest.mark.parametrize("port", [9_464, 9_100, None])
@pytest.mark.parametrize("kind", ["ServiceMonitor", "PodMonitor"])
def test_metrics_have_a_port_that_no_route_leads_to(kind: str, port: int | None) -> None:
    monitor = f"{kind[0].lower()}{kind[1:]}"
    manifests = rendered(
        "envoy-gateway", settings={"metrics_port": port}, monitoring={"serviceMonitor": False, monitor: True}
    )
    name = "metrics" if port else "http"
    spec = of_kind(manifests, kind)["spec"]
    [endpoint] = spec.get("endpoints") or spec["podMetricsEndpoints"]
    assert endpoint["port"] == name
    [container] = pod_of(manifests)["containers"]
    served = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert served == {"http": 8_080, "metrics": port} if port else served == {"http": 8_080}
    service = {each["name"]: each["targetPort"] for each in of_kind(manifests, "Service")["spec"]["ports"]}
    assert service == {each: each for each in served}
    clients, scrapes = of_kind(manifests, "NetworkPolicy")["spec"]["ingress"]
    assert [each["port"] for each in clients["ports"]] == ["http"]
    assert "monitoring" not in str(clients)
    assert [each["port"] for each in scrapes["ports"]] == [name]
    assert of_pod(manifests).get("TUTTI_METRICS_PORT") == (str(port) if port else None)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"podDisruptionBudget": {"minAvailable": 1, "maxUnavailable": 1}}, "podDisruptionBudget"),
        ({"podDisruptionBudget": {"minimum": 1}}, "podDisruptionBudget"),
        ({"podDisruptionBudget": {"minAvailable": 3}}, "minAvailable"),
        ({"podDisruptionBudget": {"minAvailable": "100%"}}, "minAvailable"),
        ({"podDisruptionBudget": {"minAvailable": 2}, "autoscaling": {"by": "hpa", "minReplicas": 2}}, "minAvailable"),
        ({"settings": {"usage_log": "/tmp"}, "usageLog": {"size": "1Gi"}}, "usage_log"),
        ({"extraVolumeMounts": [{"name": "x", "mountPath": "/models/"}]}, "extraVolumeMounts"),
        ({"autoscaling": {"by": "hpa", "minReplicas": 30}}, r"autoscaling\.minReplicas"),
        ({"autoscaling": {"by": "keda", "minReplicas": 30}}, r"autoscaling\.minReplicas"),
        ({"surge": {"maxUnavailable": 0, "maxSurge": 0}}, "surge"),
        ({"surge": {"maxUnavailable": "0%", "maxSurge": 0}}, "surge"),
        ({"surge": {"maxSurge": -1}}, "maxSurge"),
        ({"replicas": -1}, "replicas"),
        ({"model": {"name": "../x", "claim": "c"}}, "model/name"),
        ({"model": {"name": "a,b=/etc", "claim": "c"}}, "name"),
        ({"model": {"claim": "c"}}, r"model\.name"),
        ({"settings": {"vosk_port": 0}}, "vosk_port"),
        ({"settings": {"vosk_port": 8_080}}, "vosk_port"),
        ({"settings": {"vosk_port": 9_464}}, "vosk_port"),
        ({"settings": {"metrics_port": 8_080}}, "metrics_port"),
        ({"settings": {"model": []}}, "model"),
        ({"files": {"a/b": "text"}}, "a/b"),
    ],
)
def test_what_kubernetes_would_refuse_is_refused_by_name(values: Manifest, problem: str) -> None:
    with pytest.raises(RejectedValues, match=problem):
        rendered(**values)


@pytest.mark.parametrize(
    ("given", "spec"),
    [
        ({}, {"maxUnavailable": 1}),
        ({"minAvailable": "50%"}, {"minAvailable": "50%"}),
        ({"minAvailable": 2}, {"minAvailable": 2}),
        ({"maxUnavailable": 2}, {"maxUnavailable": 2}),
    ],
)
def test_a_disruption_budget_has_exactly_one_of_its_fields(given: Manifest, spec: Manifest) -> None:
    found = of_kind(rendered(podDisruptionBudget=given), "PodDisruptionBudget")["spec"]
    assert {name: found[name] for name in ("minAvailable", "maxUnavailable") if name in found} == spec


@pytest.mark.parametrize("given", [{}, {"drain_timeout_s": 3_600}, {"drain_timeout_s": 10.5}, {"drain_timeout_s": 0}])
def test_the_grace_period_covers_the_longest_drain(given: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    manifests = rendered(settings=given, preStopSeconds=20)
    for name, value in of_pod(manifests).items():
        monkeypatch.setenv(name, value)
    assert pod_of(manifests)["terminationGracePeriodSeconds"] >= 20 + longest_drain_s(Settings())


def test_the_schema_names_every_setting_once() -> None:
    found = set(json.loads(TARGET.read_text())["properties"]["settings"]["properties"])
    assert found <= set(Settings.model_fields)
    assert not found & set(OF_KEYS)
