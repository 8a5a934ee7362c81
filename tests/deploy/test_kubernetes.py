"""The Kubernetes manifests, built by kustomize, match the published schemas and the server's settings."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from model.published.releases import read_releases
from server.settings import Settings
from tests.support.audio.speech import ROOT
from tests.support.needs import need_package, need_programs

KUBERNETES = ROOT / "deploy" / "kubernetes"
OVERLAYS = ["cpu", "gpu"]
VERSIONS = ["1.31", "1.37"]
FLUSH_S = 30.0
Manifest = dict[str, Any]


@cache
def built(folder: Path) -> tuple[Manifest, ...]:
    """Return the manifests that `kubectl apply -k` would send."""
    need_programs("kubectl")
    done = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 0, done.stderr
    return tuple(yaml.safe_load_all(done.stdout))


def of_kind(manifests: tuple[Manifest, ...], kind: str) -> Manifest:
    """Return the only manifest of this kind."""
    [found] = [each for each in manifests if each["kind"] == kind]
    return found


def with_components(folder: Path, *names: str) -> tuple[Manifest, ...]:
    """Build the overlay `cpu` with components, as a user adds them."""
    relative = {
        name: Path(*[".."] * len(folder.parts[1:])) / KUBERNETES.relative_to("/") / name
        for name in ("overlays/cpu", *(f"components/{name}" for name in names))
    }
    parts = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [str(relative["overlays/cpu"])],
        "components": [str(relative[f"components/{name}"]) for name in names],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(parts))
    return built(folder)


@pytest.fixture(params=OVERLAYS)
def manifests(request: pytest.FixtureRequest) -> tuple[Manifest, ...]:
    """Return the manifests of each overlay."""
    return built(KUBERNETES / "overlays" / request.param)


@pytest.mark.parametrize("version", VERSIONS)
def test_manifests_match_the_schema_of_kubernetes(manifests: tuple[Manifest, ...], version: str) -> None:
    validate = need_package("kubernetes_validate")
    template = yaml.safe_load((KUBERNETES / "secret.template.yaml").read_text())
    for manifest in (*manifests, template):
        validate.validate(manifest, version, strict=True)


def test_the_schema_rejects_an_unknown_field(manifests: tuple[Manifest, ...]) -> None:
    validate = need_package("kubernetes_validate")
    deployment = of_kind(manifests, "Deployment")
    wrong = {**deployment, "spec": {**deployment["spec"], "replica": 3}}
    with pytest.raises(validate.ValidationError):
        validate.validate(wrong, VERSIONS[-1], strict=True)


def test_the_grace_period_covers_the_wait_the_drain_and_its_closes(manifests: tuple[Manifest, ...]) -> None:
    pod = of_kind(manifests, "Deployment")["spec"]["template"]["spec"]
    [container] = pod["containers"]
    env = {each["name"]: each["value"] for each in container["env"]}
    sleep_s = float(container["lifecycle"]["preStop"]["exec"]["command"][-1])
    assert sleep_s >= 10
    assert pod["terminationGracePeriodSeconds"] >= sleep_s + float(env["TUTTI_DRAIN_TIMEOUT_S"]) + FLUSH_S


def test_variables_of_the_pod_are_settings_of_the_server(
    manifests: tuple[Manifest, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = of_kind(manifests, "Deployment")["spec"]["template"]["spec"]
    for each in pod["containers"][0]["env"]:
        assert each["name"].removeprefix("TUTTI_").lower() in Settings.model_fields
        monkeypatch.setenv(each["name"], each["value"])
    assert Settings().threads == 1, "the default would be the node's cores"
    assert not pod["enableServiceLinks"], "TUTTI_PORT of a service would not be a port number"


def test_the_pod_runs_without_privileges(manifests: tuple[Manifest, ...]) -> None:
    pod = of_kind(manifests, "Deployment")["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] == 10001, "the user of the image"
    assert not pod["automountServiceAccountToken"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert not container["securityContext"]["allowPrivilegeEscalation"]
    assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
    assert container["resources"]["limits"]["memory"]
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/tmp", "/etc/tutti"}
    assert "latest" not in container["image"]
    assert of_kind(manifests, "NetworkPolicy")["spec"]["egress"] == []


def test_selectors_of_all_manifests_match_the_pods(manifests: tuple[Manifest, ...]) -> None:
    labels = of_kind(manifests, "Deployment")["spec"]["template"]["metadata"]["labels"]
    chosen = [
        of_kind(manifests, "Service")["spec"]["selector"],
        of_kind(manifests, "Deployment")["spec"]["selector"]["matchLabels"],
        of_kind(manifests, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        of_kind(manifests, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
    ]
    for selector in chosen:
        assert selector
        assert selector.items() <= labels.items()


def test_the_ingress_routes_audio_paths_and_no_operator_paths(manifests: tuple[Manifest, ...]) -> None:
    [rule] = of_kind(manifests, "Ingress")["spec"]["rules"]
    for path in rule["http"]["paths"]:
        assert (path["path"], path["pathType"]) != ("/", "Prefix")
        assert not path["path"].startswith(("/metrics", "/admin"))
    assert of_kind(manifests, "Ingress")["spec"]["tls"]


def test_scaling_is_by_streams_fast_up_and_slow_down(manifests: tuple[Manifest, ...]) -> None:
    spec = of_kind(manifests, "HorizontalPodAutoscaler")["spec"]
    [metric] = spec["metrics"]
    assert metric["pods"]["metric"]["name"] == "tutti_sessions_active"
    assert spec["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == 300
    assert spec["behavior"]["scaleDown"]["policies"] == [{"type": "Pods", "value": 1, "periodSeconds": 120}]
    assert "replicas" not in of_kind(manifests, "Deployment")["spec"], "set by the autoscaler"


def test_the_keda_component_replaces_the_autoscaler(tmp_path: Path) -> None:
    models = need_package("cloudcoil.models.keda.v1alpha1")
    manifests = with_components(tmp_path, "keda")
    assert not [each for each in manifests if each["kind"] == "HorizontalPodAutoscaler"]
    scaled = of_kind(manifests, "ScaledObject")
    models.ScaledObject.model_validate(scaled)
    assert scaled["spec"]["scaleTargetRef"]["name"] == of_kind(manifests, "Deployment")["metadata"]["name"]
    with pytest.raises(ValueError, match="triggers"):
        models.ScaledObject.model_validate({**scaled, "spec": {"scaleTargetRef": {"name": "tutti"}}})


def test_the_model_component_fetches_into_the_volume_that_the_pods_read(tmp_path: Path) -> None:
    validate = need_package("kubernetes_validate")
    manifests = with_components(tmp_path, "model")
    for manifest in manifests:
        for version in VERSIONS:
            validate.validate(manifest, version, strict=True)
    job = of_kind(manifests, "Job")["spec"]["template"]
    pod = of_kind(manifests, "Deployment")["spec"]["template"]["spec"]
    [fetcher], [waiter], [replica] = job["spec"]["containers"], pod["initContainers"], pod["containers"]
    [named] = fetcher["env"]
    assert named["value"] in {release.name for release in read_releases()}
    assert waiter["env"] == fetcher["env"]
    assert {each["name"]: each["value"] for each in replica["env"]}["TUTTI_MODEL"] == f"/models/{named['value']}"
    assert "tutti model fetch $MODEL --out /models/$MODEL" in fetcher["args"][-1]
    claim = of_kind(manifests, "PersistentVolumeClaim")["metadata"]["name"]
    for spec, container, read_only in ((job["spec"], fetcher, False), (pod, waiter, True), (pod, replica, True)):
        [volume] = [each for each in spec["volumes"] if "persistentVolumeClaim" in each]
        [mount] = [each for each in container["volumeMounts"] if each["name"] == volume["name"]]
        assert volume["persistentVolumeClaim"]["claimName"] == claim
        assert (mount["mountPath"], bool(mount.get("readOnly"))) == ("/models", read_only)
        assert container["securityContext"]["readOnlyRootFilesystem"]
    selected = of_kind(manifests, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"]
    assert not selected.items() <= job["metadata"]["labels"].items(), "the policy of the replicas allows no egress"


def test_an_overlay_with_the_model_component_names_image_and_namespace_once(tmp_path: Path) -> None:
    up = Path(*[".."] * len(tmp_path.parts[1:])) / KUBERNETES.relative_to("/")
    parts = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": "mine",
        "resources": [str(up / "base")],
        "components": [str(up / "components/model")],
        "images": [{"name": "tutti", "newName": "registry.example.com/tutti", "newTag": "cpu-0.1.0"}],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(parts))
    manifests = built(tmp_path)
    assert {each["metadata"]["namespace"] for each in manifests} == {"mine"}
    pods = [of_kind(manifests, kind)["spec"]["template"]["spec"] for kind in ("Job", "Deployment")]
    containers = [each for pod in pods for each in (*pod.get("initContainers", ()), *pod["containers"])]
    assert {each["image"] for each in containers} == {"registry.example.com/tutti:cpu-0.1.0"}


def test_prometheus_finds_the_service(tmp_path: Path) -> None:
    models = need_package("cloudcoil.models.prometheus_operator.v1")
    manifests = with_components(tmp_path, "monitoring")
    monitor, service = of_kind(manifests, "ServiceMonitor"), of_kind(manifests, "Service")
    models.ServiceMonitor.model_validate(monitor)
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    [endpoint] = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
