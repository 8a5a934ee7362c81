"""The Helm chart, rendered by Helm: schemas of Kubernetes and of its extensions, settings, safety of the pods."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from deploy.helm import render
from server.settings import Settings
from server.tools.fetch.releases import read_releases
from tests.support.audio.speech import ROOT
from tests.support.deployment import chart_schema
from tests.support.deployment.chart import (
    EXAMPLES,
    Manifest,
    RejectedValues,
    of_kind,
    of_pod,
    rendered,
    validate_extension,
)
from tests.support.needs import need_package

VERSIONS = [f"1.{minor}" for minor in range(33, 38)]
VALUES = ["", *(path.stem for path in EXAMPLES)]
MODEL = "sherpa-onnx-streaming-t-one-russian-2025-09-08"


@pytest.fixture(params=VALUES)
def manifests(request: pytest.FixtureRequest) -> tuple[Manifest, ...]:
    """Return the manifests with the default values, and with those of each example."""
    return rendered(*filter(None, [request.param]))


def kinds(manifests: tuple[Manifest, ...]) -> list[str]:
    return sorted(each["kind"] for each in manifests)


def test_the_schema_of_values_is_current() -> None:
    assert chart_schema.TARGET.read_text() == chart_schema.build(), (
        "run: python -m tests.support.deployment.chart_schema"
    )


def test_the_manifests_for_kubectl_are_the_rendered_chart() -> None:
    assert tuple(yaml.safe_load_all(render.TARGET.read_text())) == rendered(), "run: python -m deploy.helm.render"


def test_helm_finds_no_error_and_packages_the_shipped_rules_and_dashboard(tmp_path: Path) -> None:
    helm = need_package("helm_python")
    found = helm.lint(str(render.CHART))
    assert not found["errors"]
    assert [each for each in found["messages"] if "icon" not in each["error"]] == []
    archive = Path(helm.package(str(render.CHART), destination=str(tmp_path)))
    everything = {"monitoring": {"rules": True, "dashboard": True}}
    assert render.render(everything, chart=archive) == render.render(everything)


@pytest.mark.parametrize("version", VERSIONS)
def test_manifests_match_the_schemas(manifests: tuple[Manifest, ...], version: str) -> None:
    validate = need_package("kubernetes_validate")
    for manifest in manifests:
        if not validate_extension(manifest):
            validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("setings.threads=1", "setings"),
        ("settings.thread=1", "thread"),
        ("settings.threads=one", "threads"),
        ("settings.policy=lazy", "policy"),
        ("settings.api_keys={secret}", "api_keys"),
        ("image.pullPolicy=Sometimes", "pullPolicy"),
        ("autoscaling.by=cpu", "by"),
        ("model.from=job", "model.name"),
        ("settings.model=tutti-gru,model.name=x,model.claim=y", "settings.model"),
        ("model.name=x", "model.claim"),
        ("gateway.enabled=true", "gateway.parentRefs"),
        ("keys.contents.api_keys={abc}", "keys.contents.resume_keys"),
        ("monitoring.podMonitor=yes", "podMonitor"),
        ("monitoring.serviceMonitor=true,monitoring.podMonitor=true", "monitoring.podMonitor"),
    ],
)
def test_wrong_values_are_rejected_by_name(value: str, problem: str) -> None:
    with pytest.raises(RejectedValues, match=problem.replace(".", r"\.")):
        rendered(values=[value])


def test_every_setting_of_any_type_reaches_the_pod_as_the_server_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "max_upload_bytes": 209_715_200,
        "reproducible": True,
        "latency_budget_ms": 62.5,
        "model_aliases": {"nova-3": "default"},
        "allowed_origins": ["https://a.example", "https://b.example"],
        "max_streams": "auto",
    }
    for name, value in of_pod(rendered(settings=given)).items():
        monkeypatch.setenv(name, value)
    settings = Settings()
    assert settings.max_upload_bytes == given["max_upload_bytes"], "not 2.097152e+08"
    assert settings.reproducible
    assert settings.latency_budget_ms == given["latency_budget_ms"]
    assert settings.model_aliases == given["model_aliases"]
    assert list(settings.allowed_origins) == given["allowed_origins"]


def test_variables_of_the_pod_are_settings_of_the_server(
    manifests: tuple[Manifest, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = of_kind(manifests, "Deployment")["spec"]["template"]["spec"]
    for name, value in of_pod(manifests).items():
        assert name.removeprefix("TUTTI_").lower() in Settings.model_fields
        monkeypatch.setenv(name, value)
    assert Settings().threads == 1, "the default would be the node's cores"
    assert not pod["enableServiceLinks"], "TUTTI_PORT of a service would not be a port number"


def test_pods_run_without_privileges(manifests: tuple[Manifest, ...]) -> None:
    pods = [each["spec"]["template"]["spec"] for each in manifests if each["kind"] in ("Deployment", "Job")]
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["runAsUser"] == 10001, "the user of the image"
        assert not pod["automountServiceAccountToken"]
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            assert container["securityContext"]["readOnlyRootFilesystem"]
            assert not container["securityContext"]["allowPrivilegeEscalation"]
            assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
            assert container["resources"]["limits"]["memory"]
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


def test_two_releases_in_one_namespace_share_no_object() -> None:
    first, second = rendered("envoy-gateway"), rendered("envoy-gateway", release="other")
    names = [{(each["kind"], each["metadata"]["name"]) for each in found} for found in (first, second)]
    assert not names[0] & names[1]
    assert {each["metadata"]["namespace"] for each in (*first, *second)} == {"speech"}


def test_a_stream_through_a_gateway_has_no_limit_and_an_ingress_has_tls() -> None:
    for example in ("envoy-gateway", "traefik"):
        [rule] = of_kind(rendered(example), "HTTPRoute")["spec"]["rules"]
        assert rule["timeouts"]["request"] == "0s"
    assert of_kind(rendered("haproxy-ingress"), "Ingress")["spec"]["tls"]
    assert "annotations" not in of_kind(rendered(values=["ingress.enabled=true"]), "Ingress")["metadata"]


def test_keys_can_be_created_and_rotated_by_the_chart() -> None:
    keys = {"api_keys": ["ab12"], "resume_keys": ["new", "old"], "token_keys": ["t"]}
    manifests = rendered(keys={"contents": keys})
    secret = of_kind(manifests, "Secret")
    assert secret["stringData"] == {name: "\n".join(lines) for name, lines in keys.items()}
    pod = of_kind(manifests, "Deployment")["spec"]["template"]
    [volume] = [each for each in pod["spec"]["volumes"] if each["name"] == "keys"]
    assert volume["secret"]["secretName"] == secret["metadata"]["name"]
    changed = rendered(keys={"contents": keys | {"resume_keys": ["newer", "new"]}})
    annotations = [
        of_kind(each, "Deployment")["spec"]["template"]["metadata"]["annotations"] for each in (manifests, changed)
    ]
    assert annotations[0] != annotations[1], "pods restart with the new keys"
    assert "Secret" not in kinds(rendered())


def test_a_job_fetches_the_model_into_the_claim_that_the_pods_read() -> None:
    manifests = rendered("published-model")
    job = of_kind(manifests, "Job")["spec"]["template"]
    pod = of_kind(manifests, "Deployment")["spec"]["template"]["spec"]
    [fetcher], [waiter], [replica] = job["spec"]["containers"], pod["initContainers"], pod["containers"]
    [named] = fetcher["env"]
    assert named["value"] in {release.name for release in read_releases()}
    assert waiter["env"] == fetcher["env"]
    assert of_pod(manifests)["TUTTI_MODEL"] == f"/models/{named['value']}"
    claim = of_kind(manifests, "PersistentVolumeClaim")["metadata"]["name"]
    for spec, container, read_only in ((job["spec"], fetcher, False), (pod, waiter, True), (pod, replica, True)):
        [volume] = [each for each in spec["volumes"] if "persistentVolumeClaim" in each]
        [mount] = [each for each in container["volumeMounts"] if each["name"] == volume["name"]]
        assert volume["persistentVolumeClaim"]["claimName"] == claim
        assert (mount["mountPath"], bool(mount.get("readOnly"))) == ("/models", read_only)
    selected = of_kind(manifests, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"]
    assert not selected.items() <= job["metadata"]["labels"].items(), "the policy of the replicas allows no egress"
    other = of_kind(rendered(model={"name": "another", "from": "job"}), "Job")["metadata"]["name"]
    assert other != of_kind(manifests, "Job")["metadata"]["name"], "a job cannot be changed"


@pytest.mark.parametrize(
    ("model", "volume"),
    [
        ({"from": "init"}, {"emptyDir": {"sizeLimit": "4Gi"}}),
        ({"from": "claim", "claim": "shared"}, {"persistentVolumeClaim": {"claimName": "shared", "readOnly": True}}),
        ({"from": "image", "image": "r/m:1"}, {"image": {"reference": "r/m:1", "pullPolicy": "IfNotPresent"}}),
    ],
)
def test_a_model_comes_from_an_init_container_a_claim_or_an_image(model: Manifest, volume: Manifest) -> None:
    validate = need_package("kubernetes_validate")
    manifests = rendered(model={"name": MODEL} | model)
    for manifest in manifests:
        validate.validate(manifest, VERSIONS[-1], strict=True)
    pod = of_kind(manifests, "Deployment")["spec"]["template"]["spec"]
    [found] = [each for each in pod["volumes"] if each["name"] == "models"]
    assert found == {"name": "models"} | volume
    assert of_pod(manifests)["TUTTI_MODEL"] == f"/models/{MODEL}"
    assert [each["name"] for each in pod.get("initContainers", ())] == (
        ["fetch-model"] if model["from"] == "init" else []
    )
    ports = [port["port"] for rule in of_kind(manifests, "NetworkPolicy")["spec"]["egress"] for port in rule["ports"]]
    assert ports == ([53, 53, 443] if model["from"] == "init" else []), "DNS and HTTPS, to fetch"


def test_objects_of_prometheus_and_grafana_are_the_shipped_files() -> None:
    manifests = rendered("envoy-gateway")
    root = ROOT / "deploy"
    rules = yaml.safe_load((root / "prometheus" / "rules.yml").read_text())
    assert of_kind(manifests, "PrometheusRule")["spec"] == rules
    dashboard = of_kind(manifests, "ConfigMap")["data"]["tutti.json"]
    assert yaml.safe_load(dashboard) == yaml.safe_load((root / "grafana" / "dashboards" / "tutti.json").read_text())
    monitor, service = of_kind(manifests, "ServiceMonitor"), of_kind(manifests, "Service")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    [endpoint] = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert monitor["metadata"]["labels"]["release"] == "kube-prometheus-stack"


def test_a_pod_monitor_reads_the_pods_themselves_and_gives_their_series_the_same_labels() -> None:
    """The autoscalers select by namespace and service, the alerts by job: neither depends on the kind of monitor."""
    manifests, by_service = rendered("haproxy-ingress"), of_kind(rendered("envoy-gateway"), "ServiceMonitor")
    assert "ServiceMonitor" not in kinds(manifests)
    monitor, pod = of_kind(manifests, "PodMonitor"), of_kind(manifests, "Deployment")["spec"]["template"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    [endpoint], [other] = monitor["spec"]["podMetricsEndpoints"], by_service["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
    name = of_kind(manifests, "Service")["metadata"]["name"]
    assert endpoint.pop("relabelings") == [{"targetLabel": "service", "replacement": name}]
    assert endpoint == other
    assert monitor["spec"]["jobLabel"] == by_service["spec"]["jobLabel"]
    assert pod["metadata"]["labels"][monitor["spec"]["jobLabel"]] == "tutti", 'as in the alerts: job="tutti"'
    assert monitor["metadata"]["labels"]["release"] == "kube-prometheus-stack"
    other_release = of_kind(rendered("haproxy-ingress", release="other"), "PodMonitor")["spec"]["podMetricsEndpoints"]
    assert other_release[0]["relabelings"][0]["replacement"] == "other-tutti"


def test_replicas_are_set_by_the_autoscaler_or_by_the_chart() -> None:
    assert of_kind(rendered(), "Deployment")["spec"]["replicas"] == 3
    for by, kind in (("hpa", "HorizontalPodAutoscaler"), ("keda", "ScaledObject")):
        manifests = rendered(autoscaling={"by": by})
        assert "replicas" not in of_kind(manifests, "Deployment")["spec"]
        target = of_kind(manifests, kind)["spec"]["scaleTargetRef"]["name"]
        assert target == of_kind(manifests, "Deployment")["metadata"]["name"]
