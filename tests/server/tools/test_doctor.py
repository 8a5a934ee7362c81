"""`tutti doctor`: a healthy installation passes, and each problem is reported with advice."""

from __future__ import annotations

import json
import resource
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from model import checkpoint
from model.acoustic import load_own
from model.config import ModelConfig
from model.evaluation.digest import committed_digest
from model.facts import ModelFacts
from model.machine import precision
from model.torch_model import TorchModel
from model.torch_network.slots import TorchSlots
from server.cli import app
from server.settings import Settings
from server.tools.doctor import machine, models
from server.tools.doctor.findings import Check, Finding, Verdict, document, examine, line, ok
from tests.support.needs import need_ipv6
from tests.support.networks.turn_model import write_turn_model


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """Restore the process's compute threads, which `tutti doctor` changes."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def findings(*checks: Check, **settings: Any) -> dict[str, Finding]:
    found: list[Finding] = []
    examine(Settings(**settings), checks, found.append)
    return {finding.name: finding for finding in found}


def test_this_installation_passes_with_a_json_report() -> None:
    done = CliRunner().invoke(app, ["doctor", "--json", "--port", "0"])
    report = json.loads(done.stdout.splitlines()[-1])
    failed = [check for check in report["checks"] if check["verdict"] == "fail"]
    assert (done.exit_code, failed, report["ok"]) == (0, [], True)
    names = {check["name"] for check in report["checks"]}
    assert names >= {"installation", "processor", "open files", "ports", "keys", "admin", "weights", "precision"}
    assert names >= {"states", "caches", "batch invariance", "arithmetic", "decoder", "server"}
    assert {"tutti-mandarin: arithmetic", "tutti-mandarin: decoder"} <= names
    assert all(check["advice"] for check in report["checks"] if check["verdict"] != "ok")


def test_a_check_that_raises_fails_and_the_next_one_runs() -> None:
    def breaks(_: Settings) -> Iterator[Finding]:
        raise OSError("no such device")
        yield

    def works(_: Settings) -> Iterator[Finding]:
        yield ok("second", "fine")

    found: list[Finding] = []
    assert not examine(Settings(), (breaks, works), found.append)
    assert [finding.verdict for finding in found] == [Verdict.FAIL, Verdict.OK]
    assert "no such device" in line(found[0])
    assert json.loads(document(found, well=False))["ok"] is False


def test_each_invalid_setting_is_named_and_no_secret_is_shown(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("not a digest\n")
    wrong = {"TUTTI_API_KEYS_FILE": str(keys), "TUTTI_RESUME_KEYS": "short", "TUTTI_ALLOWED_ORIGINS": "example.org"}
    done = CliRunner().invoke(app, ["doctor", "--json", "--port", "0", "--model", "absent.safetensors"], env=wrong)
    failed = [each for each in json.loads(done.stdout.splitlines()[-1])["checks"] if each["verdict"] == "fail"]
    assert done.exit_code == 1
    assert [each["name"] for each in failed] == ["keys and files"] * 3 + ["models"]
    for each, name in zip(failed, wrong, strict=False):
        assert name in each["advice"]
        assert "short" not in each["found"]
    assert f"{keys}:1" in failed[0]["found"]
    assert "absent.safetensors" in failed[3]["found"]


WRONG = {  # invalid settings, and the option and variable that the advice must name
    "keys of operators": ({"admin_keys_file": "absent"}, "TUTTI_ADMIN_KEYS_FILE"),
    "keys of tokens": ({"token_keys": ["short"]}, "TUTTI_TOKEN_KEYS"),
    "a file of keys of tokens": ({"token_keys_file": "absent"}, "TUTTI_TOKEN_KEYS_FILE"),
    "a file of keys of tickets": ({"resume_keys_file": "absent"}, "--resume-keys-file (TUTTI_RESUME_KEYS_FILE)"),
    "a key of receipts": ({"receipt_key_file": "absent"}, "--receipt-key-file (TUTTI_RECEIPT_KEY_FILE)"),
    "a secret of callbacks": (
        {"callback_secret": "x", "callback_hosts": ["a.example"], "callback_folder": "absent"},
        "TUTTI_CALLBACK_SECRET",
    ),
    "key terms of a port": ({"wyoming_port": "0?keyterms=/absent"}, "--wyoming-port (TUTTI_WYOMING_PORT)"),
    "written forms": ({"written_forms": "absent"}, "--written-forms (TUTTI_WRITTEN_FORMS)"),
    "an address": ({"host": "192.0.2.1", "port": 8080}, "--host (TUTTI_HOST)"),
    "a name that is no host": ({"host": "no.such.host.invalid", "port": 8080}, "--host (TUTTI_HOST)"),
    "a port for two": ({"port": 48_080, "metrics_port": 48_080}, "--metrics-port (TUTTI_METRICS_PORT)"),
}


@pytest.mark.parametrize(("wrong", "named"), WRONG.values(), ids=WRONG)
def test_the_advice_names_the_invalid_setting(wrong: dict[str, Any], named: str) -> None:
    found = findings(machine.ports, machine.keys, **{"port": 0} | wrong)
    [failed] = [one for one in found.values() if one.verdict is Verdict.FAIL]
    assert named in failed.advice


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"lm": "absent.arpa"}, "absent.arpa"),
        ({"model": "."}, "no .onnx file"),
        ({"model": None, "models_file": "absent.toml"}, "--models-file (TUTTI_MODELS_FILE)"),
        ({"grammars": "absent", "lm": "off", "decoder": "beam"}, "absent"),
        ({"precision": "fp16", "device": "cpu"}, "fp16 needs a GPU"),
    ],
)
def test_a_model_that_cannot_be_loaded_fails(wrong: dict[str, Any], named: str) -> None:
    failed = findings(models.models, **{"model": "gru"} | wrong)["models"]
    assert failed.verdict is Verdict.FAIL
    assert named in line(failed)


@pytest.mark.parametrize("taken_on", ["127.0.0.1", "::1"])
def test_a_port_in_use_fails_and_the_wildcard_address_covers_ipv4(taken_on: str) -> None:
    need_ipv6()
    family = socket.AF_INET6 if ":" in taken_on else socket.AF_INET
    with socket.create_server((taken_on, 0), family=family) as taken:
        port = taken.getsockname()[1]
        finding = findings(machine.ports, host="[::]", port=port)["ports"]
    assert finding.verdict is Verdict.FAIL
    assert finding.found.startswith(f"[::]:{port}:")
    assert "--port" in finding.advice


def test_a_server_without_keys_on_a_public_address_gives_a_warning() -> None:
    for settings, verdict in (
        ({}, Verdict.OK),
        ({"host": "0.0.0.0"}, Verdict.WARN),
        ({"host": "0.0.0.0", "api_keys": ["k"]}, Verdict.OK),
    ):
        found = findings(machine.keys, **settings)
        assert found["keys"].verdict is verdict
        assert "closed" in found["admin"].found


def test_too_low_a_limit_of_open_files_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 256))
    finding = findings(machine.files, max_streams=512)["open files"]
    assert (finding.verdict, "1024 needed" in finding.found) == (Verdict.FAIL, True)


def test_a_bad_setting_exits_with_status_2() -> None:
    done = CliRunner().invoke(app, ["doctor", "--decoder", "flashlight"])
    assert done.exit_code == 2
    assert "decoder" in done.output


# Models


def of_model(**settings: Any) -> dict[str, Finding]:
    """Return the findings on the GRU network alone."""
    chosen = Settings(**{"model": "tutti-gru", "precision": "int8"} | settings)
    served = load_own(chosen.model, device="cpu", precision=chosen.precision, threads=1)
    return {finding.name: finding for finding in models.of_model(chosen, served)}


def test_weights_that_do_not_stay_in_the_caches_give_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    for middle_ns, verdict in ((20.0, Verdict.OK), (140.0, Verdict.WARN)):
        rounds_ns = [15.0, middle_ns, 400.0]
        monkeypatch.setattr(models, "read_ns", lambda _, rounds_ns=rounds_ns: rounds_ns)
        finding = models._caches(2**20)
        assert finding.verdict is verdict
        assert f"{middle_ns:.0f} ns per read" in finding.found


def test_an_unsupported_precision_fails_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "multiplies_bf16", lambda: False)
    finding = findings(models.models, model="tutti-gru", precision="bf16")["models"]
    assert "precision bf16 needs a processor with" in finding.found
    assert finding.advice == "use --precision int8, fp32 or auto"


@pytest.mark.parametrize(
    ("way", "asked", "precision", "verdict", "advice"),
    [
        ("vnni512", "auto", "int8", Verdict.OK, ""),
        ("avx2", "int8", "int8", Verdict.OK, ""),
        ("portable", "int8", "int8", Verdict.WARN, "AVX2"),
        ("portable", "auto", "fp32", Verdict.WARN, "AVX2"),
        ("avx2", "auto", "fp32", Verdict.WARN, "tutti quantize"),
        ("vnni512", "auto", "bf16", Verdict.OK, ""),
        ("vnni512", "fp32", "fp32", Verdict.OK, ""),
    ],
)
def test_precision_names_the_instructions_and_warns_of_slow_ones(  # noqa: PLR0917
    monkeypatch: pytest.MonkeyPatch, way: str, asked: str, precision: str, verdict: Verdict, advice: str
) -> None:
    monkeypatch.setattr(models, "instruction_set", lambda: way)
    facts = ModelFacts.own(ModelConfig(), precision=precision)
    finding = models._precision(Settings(precision=asked), facts)
    assert (finding.verdict, finding.found) == (verdict, f"{precision} on cpu, {way} instructions")
    assert advice in finding.advice


def test_arithmetic_that_differs_from_that_of_other_processors_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the model, and for accurate finals of the scores of texts."""
    texts = "arithmetic of accurate finals' texts"
    assert "arithmetic" not in of_model(precision="fp32")
    assert texts not in of_model(finals="fast")
    assert texts not in of_model(finals="accurate", lm="off")
    same = of_model()
    assert {same[name].verdict for name in ("arithmetic", texts)} == {Verdict.OK}
    monkeypatch.setattr(models, "committed_digest", lambda _: "0" * 64)
    other = of_model(finals="accurate")
    assert {other[name].verdict for name in ("arithmetic", texts)} == {Verdict.FAIL}
    assert "fp32" in other["arithmetic"].advice


def test_arithmetic_is_checked_only_for_shipped_models(tmp_path: Path) -> None:
    assert committed_digest("tutti-gru.safetensors")
    another = tmp_path / "another.safetensors"
    for suffix in (".safetensors", ".json"):
        another.with_suffix(suffix).symlink_to(checkpoint.GRU.with_suffix(suffix))
    assert "arithmetic" not in of_model(model=another)


def test_damaged_weights_are_listed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sums = (checkpoint.WEIGHTS / models.SUMS).read_text()
    (tmp_path / models.SUMS).write_text(sums)
    names = {row.split()[1] for row in sums.splitlines()}
    kinds = (".safetensors", ".json", ".gz", ".onnx")
    assert names == {path.name for path in checkpoint.WEIGHTS.iterdir() if path.suffix in kinds}
    for name in names - {"tutti-gru.json"}:
        (tmp_path / name).symlink_to(checkpoint.WEIGHTS / name)
    (tmp_path / "tutti-gru.json").write_text("{}")
    monkeypatch.setattr(checkpoint, "WEIGHTS", tmp_path)
    finding = findings(models.weights)["weights"]
    assert (finding.verdict, finding.found) == (Verdict.FAIL, "damaged or missing: tutti-gru.json")


class BatchDependent(TorchModel):
    """Outputs depend on the batch size, except at the size of a tile (16)."""

    def step(self, inputs, state):  # type: ignore[no-untyped-def]
        log_probs, after = super().step(inputs, state)
        return log_probs + (0 if len(inputs) == 16 else len(inputs) * 1e-3), after

    def slots(self, **sizes):  # type: ignore[no-untyped-def]
        return TorchSlots(self, **sizes)


def test_batch_dependent_outputs_give_a_warning_with_advice_to_use_tiles() -> None:
    leaky = BatchDependent(TorchModel.random().network, "leaky", device="cpu", precision="fp32")
    assert models.differing(leaky, None)
    assert not models.differing(leaky, 16)
    (finding,) = models._invariance(Settings(), leaky)
    assert (finding.verdict, "--reproducible" in finding.advice) == (Verdict.WARN, True)


def test_a_turn_model_of_another_form_fails(tmp_path: Path) -> None:
    settings = {"model": "tutti-gru", "turn_model": write_turn_model(tmp_path / "other.onnx", bands=128)}
    assert "128, 800" in findings(models.models, **settings)["models"].found
