"""`tutti doctor` on models: weights, precisions, arithmetic, scores, independence of the batch, turn models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from model import checkpoint
from model.config import ModelConfig
from model.evaluation.digest import committed_digest
from model.facts import ModelFacts
from model.machine import precision
from model.torch_model import TorchModel
from model.torch_network.slots import TorchSlots
from server.settings import Settings
from server.tools import doctor_model
from server.tools.doctor import Finding, Verdict, ok
from tests.server.tools.test_doctor import findings
from tests.support.networks.turn_model import write_turn_model


def of_model(**settings: object) -> dict[str, Finding]:
    """The findings on the default model alone: by default the Mandarin one is checked, too."""
    return findings(doctor_model.model, **({"model": "tutti-small"} | settings))


def test_weights_that_do_not_stay_in_the_caches_give_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    for middle_ns, verdict in ((20.0, Verdict.OK), (140.0, Verdict.WARN)):
        rounds = [15.0, middle_ns, 400.0]
        monkeypatch.setattr(doctor_model, "read_ns", lambda _, found=rounds: found)
        finding = of_model()["caches"]
        assert finding.verdict is verdict
        assert f"{middle_ns:.0f} ns per read" in finding.found


def test_an_unsupported_precision_fails_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "multiplies_bf16", lambda: False)
    (finding,) = doctor_model.model(Settings(model="tutti-small", precision="bf16"))
    assert (finding.name, finding.verdict) == ("precision", Verdict.FAIL)
    assert finding.found.startswith("precision bf16 needs a processor with")
    assert finding.advice == "--precision (TUTTI_PRECISION): use --precision int8, fp32 or auto"


@dataclass
class Served:
    """The attribute of a model that `_precision` reads."""

    facts: ModelFacts


@pytest.mark.parametrize(
    ("way", "asked", "precision", "verdict", "text"),
    [
        ("vnni512", "auto", "int8", Verdict.OK, "int8 with vnni512 instructions"),
        ("avx2", "int8", "int8", Verdict.OK, "int8 with avx2 instructions"),
        ("portable", "int8", "int8", Verdict.WARN, "int8 with portable code"),
        ("portable", "auto", "fp32", Verdict.WARN, "AVX2"),
        ("avx2", "auto", "fp32", Verdict.WARN, "tutti quantize"),
        ("vnni512", "auto", "bf16", Verdict.OK, "no 8-bit weights"),
        ("vnni512", "fp32", "fp32", Verdict.OK, "as requested"),
    ],
)
def test_precision_names_the_instructions_and_warns_of_slow_ones(  # noqa: PLR0917
    monkeypatch: pytest.MonkeyPatch, way: str, asked: str, precision: str, verdict: Verdict, text: str
) -> None:
    monkeypatch.setattr(doctor_model, "instruction_set", lambda: way)
    served = Served(ModelFacts.own(ModelConfig(), precision=precision))
    finding = doctor_model._precision(Settings(precision=asked), served)
    assert finding.verdict is verdict
    assert text in finding.found + finding.advice


def test_each_of_several_models_is_checked_with_its_own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_model, "_one_model", lambda settings, _: [ok("device", f"{settings.model}")])
    found = [(one.name, one.found) for one in doctor_model.model(Settings(model=["en=a", "es=b"]))]  # type: ignore[arg-type]
    assert found == [("en: device", "a"), ("es: device", "b")]
    assert [(one.name, one.found) for one in doctor_model.model(Settings(model="a"))] == [("device", "a")]
    by_default = [(one.name, one.found) for one in doctor_model.model(Settings())]
    assert by_default == [("device", "None"), ("tutti-mandarin: device", "tutti-mandarin")]


def test_arithmetic_that_differs_from_that_of_other_processors_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    assert of_model(precision="int8")["arithmetic"].verdict is Verdict.OK
    monkeypatch.setattr(doctor_model, "committed_digest", lambda _: "0" * 64)
    finding = of_model(precision="int8")["arithmetic"]
    assert finding.verdict is Verdict.FAIL
    assert "fp32" in finding.advice


def test_arithmetic_of_the_second_pass_model_is_checked_for_accurate_finals(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "arithmetic of accurate finals"
    ours = lambda model: committed_digest(f"{model.config.name}.safetensors")  # noqa: E731
    monkeypatch.setattr(doctor_model, "log_probs_digest", ours)
    assert name not in of_model(precision="int8")
    assert of_model(precision="int8", finals="accurate")[name].verdict is Verdict.OK
    monkeypatch.setattr(doctor_model, "log_probs_digest", lambda model: model.config.name)
    assert of_model(precision="int8", finals="accurate")[name].verdict is Verdict.FAIL


def test_scores_of_the_whole_text_model_are_checked_for_accurate_finals(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "arithmetic of accurate finals' texts"
    monkeypatch.setattr(
        doctor_model, "log_probs_digest", lambda model: committed_digest(f"{model.config.name}.safetensors")
    )
    assert name not in of_model(precision="int8")
    assert name not in of_model(precision="int8", finals="accurate", lm="off")
    assert of_model(precision="int8", finals="accurate")[name].verdict is Verdict.OK
    monkeypatch.setattr(doctor_model, "scores_digest", lambda _: "another")
    assert of_model(precision="int8", finals="accurate")[name].verdict is Verdict.FAIL


def test_arithmetic_is_checked_only_for_shipped_8_bit_models(tmp_path: Path) -> None:
    assert "arithmetic" not in of_model(precision="fp32")
    assert "tutti-mandarin: arithmetic" in findings(doctor_model.model, precision="int8")
    another = tmp_path / "another.safetensors"
    for suffix in (".safetensors", ".json"):
        another.with_suffix(suffix).symlink_to(checkpoint.SHIPPED.with_suffix(suffix))
    assert "arithmetic" not in of_model(model=another, precision="int8")


def test_damaged_weights_are_listed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sums = (checkpoint.WEIGHTS / doctor_model.SUMS).read_text()
    (tmp_path / doctor_model.SUMS).write_text(sums)
    for row in sums.splitlines():
        name = row.split()[1]
        (tmp_path / name).symlink_to(checkpoint.WEIGHTS / name)
    (tmp_path / "tutti-small.json").unlink()
    (tmp_path / "tutti-small.json").write_text("{}")
    monkeypatch.setattr(checkpoint, "WEIGHTS", tmp_path)
    finding = findings(doctor_model.weights)["weights"]
    assert (finding.verdict, finding.found) == (Verdict.FAIL, "damaged or missing: tutti-small.json")


def test_every_shipped_weight_has_its_digest() -> None:
    named = {row.split()[1] for row in (checkpoint.WEIGHTS / doctor_model.SUMS).read_text().splitlines()}
    shipped = {
        path.name for path in checkpoint.WEIGHTS.iterdir() if path.suffix in (".safetensors", ".json", ".gz", ".onnx")
    }
    assert named == shipped


class BatchDependent(TorchModel):
    """Outputs depend on the batch size, except at the size of a tile (16)."""

    def step(self, inputs, state):  # type: ignore[no-untyped-def]
        log_probs, after = super().step(inputs, state)
        return log_probs + (0 if len(inputs) == 16 else len(inputs) * 1e-3), after

    def slots(self, **sizes):  # type: ignore[no-untyped-def]
        return TorchSlots(self, **sizes)


def test_batch_dependent_outputs_give_a_warning_with_advice_to_use_tiles() -> None:
    network = TorchModel.random().network
    leaky = BatchDependent(network, "leaky", device="cpu", precision="fp32")
    assert doctor_model.differing(leaky, None)
    assert not doctor_model.differing(leaky, 16)
    (finding,) = doctor_model._invariance(Settings(), leaky)
    assert (finding.verdict, "--reproducible" in finding.advice) == (Verdict.WARN, True)


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """Restore the process's compute threads, which `tutti doctor` changes."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_a_turn_model_is_loaded_and_one_of_another_form_fails(tmp_path: Path) -> None:
    good = of_model(turn_model=write_turn_model(tmp_path / "turns.onnx"))["turn model"]
    bad = of_model(turn_model=write_turn_model(tmp_path / "other.onnx", bands=128))["turn model"]
    assert (good.verdict, bad.verdict) == (Verdict.OK, Verdict.FAIL)
    assert "128, 800" in bad.found
