"""Precision in training: the choice of `auto`, what stays in float32, the loss scale in fp16."""

import math

import pytest
import torch

from model.errors import PrecisionError
from model.machine.precision import multiplies_bf16, native_bf16
from model.recordings import read_manifest
from tests.support.training import tones
from tutti_asr_lab.training.acoustic.data.corpus import Corpus
from tutti_asr_lab.training.acoustic.optimizer import precision
from tutti_asr_lab.training.acoustic.optimizer.precision import LossScale, training_precision
from tutti_asr_lab.training.acoustic.trainer import Trainer

CPU = torch.device("cpu")


def test_auto_is_bf16_if_the_processor_has_bf16_products():
    assert training_precision("auto", CPU) == ("bf16" if native_bf16() else "fp32")
    assert training_precision("fp32", CPU) == "fp32"


@pytest.mark.parametrize(("capability", "expected"), [((7, 5), "fp16"), ((8, 0), "bf16"), ((9, 0), "bf16")])
def test_auto_on_a_gpu_depends_on_its_compute_capability(monkeypatch, capability, expected):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert training_precision("auto", torch.device("cuda")) == expected
    assert training_precision("fp32", torch.device("cuda")) == "fp32"


def test_bf16_is_refused_without_bf16_products(monkeypatch):
    monkeypatch.setattr(precision, "multiplies_bf16", lambda: False)
    with pytest.raises(PrecisionError, match="fp32 or auto"):
        training_precision("bf16", CPU)
    with pytest.raises(PrecisionError, match="int8"):
        training_precision("int8", CPU)


def test_the_loss_scale_halves_at_once_and_doubles_after_patience():
    scale = LossScale("fp16")
    first = scale.value
    scale.follow(math.inf)
    assert scale.value == first / 2
    for _ in range(LossScale.PATIENCE):
        assert scale.value == first / 2
        scale.follow(1.0)
    assert scale.value == first
    restored = LossScale("fp16")
    restored.load_state_dict(scale.state_dict())
    assert (restored.value, restored.finite) == (scale.value, scale.finite)
    fixed = LossScale("bf16")
    fixed.follow(math.nan)
    assert fixed.value == 1.0


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tones.write_tones(tmp_path_factory.mktemp("tones"))
    return Corpus(read_manifest(folder / "tones.jsonl"), folder / "cache", tones.RATE)


def trained(corpus, chosen, updates=6, scale=None):
    trainer = Trainer(tones.TINY, tones.recipe(updates=updates, precision=chosen), corpus, [], CPU)
    trainer.fit_features()
    if scale is not None:
        trainer.loss_scale.value = scale
    return trainer, list(trainer.run())


@pytest.mark.parametrize("chosen", ["fp32", "bf16", "fp16"])
def test_each_precision_trains_with_weights_and_momentum_in_float32(corpus, chosen):
    if chosen == "bf16" and not multiplies_bf16():
        with pytest.raises(PrecisionError, match="bf16"):
            trained(corpus, chosen)
        return
    trainer, progress = trained(corpus, chosen, scale=16.0 if chosen == "fp16" else None)
    assert all(math.isfinite(p.loss) for p in progress)
    assert all(t.dtype == torch.float32 for t in trainer.network.state_dict().values())
    assert all(t.dtype == torch.float32 for t in trainer.optimizers.muon.momentum)
    _, exact = trained(corpus, "fp32")
    assert progress[-1].loss == pytest.approx(exact[-1].loss, rel=0.05)


def test_an_overflowing_update_is_skipped_and_the_scale_halves_until_one_is_finite(corpus):
    trainer, progress = trained(corpus, "fp16", updates=14, scale=2.0**20)
    finite = [math.isfinite(p.loss) for p in progress]
    assert not finite[0]
    assert finite[-1]
    assert trainer.loss_scale.value == 2.0 ** (20 - finite.count(False))
    assert all(t.isfinite().all() for t in trainer.network.state_dict().values())
