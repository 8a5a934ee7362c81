"""Training by the persistent kernels: gradients, the choice of the recurrence, and runs of the trainer on a CPU."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from model.errors import PrecisionError
from model.recordings import read_manifest
from model.torch_network.network import GRULayer
from tests.lab.gpu.gru_backward_emulation import LoopKernels, emulated_kernels
from tests.lab.gpu.test_persistent import H100
from tests.support.training import tones
from tutti_asr_lab.gpu import training
from tutti_asr_lab.gpu.driver import KernelError
from tutti_asr_lab.gpu.scan import PersistentScan
from tutti_asr_lab.gpu.training import TOLERANCE, PersistentRecurrence, choose_recurrence, largest_error
from tutti_asr_lab.training.acoustic.data.corpus import Corpus
from tutti_asr_lab.training.acoustic.recipe import Recipe
from tutti_asr_lab.training.acoustic.trainer import Trainer

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    return emulated_kernels(64, tmp_path_factory.mktemp("kernels"))


def test_gradients_in_float64_are_those_of_finite_differences():
    random = torch.Generator().manual_seed(3)
    shapes = (2, 4, 15), (15, 5), (15,), (2, 5)  # gates, U, its bias, h(0)
    leaves = [torch.randn(shape, generator=random, dtype=torch.double).requires_grad_() for shape in shapes]
    assert torch.autograd.gradcheck(lambda *each: PersistentScan.apply(*each, LoopKernels()), leaves)


def gradients(layer, x, state, outputs, dtype):
    """Return outputs, and gradients of the input, of h(0) and of all parameters, with products in `dtype`."""
    x, state = x.clone().requires_grad_(), state.clone().requires_grad_()
    with torch.autocast("cpu", dtype, enabled=dtype in {torch.bfloat16, torch.float16}):
        out, _ = layer(x, state)
    return [out, *torch.autograd.grad((out.to(outputs.dtype) * outputs).sum(), [x, state, *layer.parameters()])]


@pytest.mark.parametrize(
    ("dtype", "most", "typical"),
    [(torch.float32, 0.005, 0.0006), (torch.bfloat16, 0.008, 0.0012), (torch.float16, 0.005, 0.0006)],
)
def test_a_layer_has_the_gradients_of_autograd_within_the_rounding_of_its_products(kernels, dtype, most, typical):
    """The emulated kernels, 17 rows of 12 frames, against autograd of the loop over frames in float64."""
    torch.manual_seed(4)
    layer, outputs = GRULayer(24, 64), torch.randn(17, 12, 64)
    x, state = torch.randn(17, 12, 24), torch.rand(17, 64) * 2 - 1
    exact = GRULayer(24, 64).double()
    exact.load_state_dict(layer.state_dict())
    exact.recurrence = PersistentRecurrence(LoopKernels())
    layer.recurrence = PersistentRecurrence(kernels)
    found = gradients(layer, x, state, outputs, dtype)
    wanted = gradients(exact, x.double(), state.double(), outputs.double(), torch.float64)
    loop = GRULayer.steps(exact, x.double(), state.double())[0]
    assert torch.allclose(wanted[0], loop, atol=1e-12)
    for ours, theirs in zip(found, wanted, strict=True):
        error = (ours - theirs).abs() / theirs.abs().max()
        assert error.max() < most
        assert error.square().mean().sqrt() < typical


def test_more_rows_than_a_launch_takes_are_divided(kernels, monkeypatch):
    torch.manual_seed(5)
    leaves = [torch.randn(11, 2, 192), torch.randn(192, 64) / 8, torch.randn(192) / 8, torch.rand(11, 64)]
    leaves = [each.requires_grad_() for each in leaves]

    def run():
        out = PersistentScan.apply(*leaves, kernels)
        return [out, *torch.autograd.grad(out.square().sum(), leaves)]

    whole = run()
    monkeypatch.setattr("tutti_asr_lab.gpu.scan.MAX_ROWS", 4)
    assert all(torch.equal(a, b) for a, b in zip(run(), whole, strict=True))


def test_the_comparison_at_the_start_accepts_the_kernels_and_refuses_wrong_ones(kernels):
    assert largest_error(kernels, 64, CPU) < TOLERANCE / 2

    class Wrong(LoopKernels):
        def backward(self, factors, outputs, weight):
            products, candidates, first = super().backward(factors, outputs, weight)
            return products, candidates, first * 1.1

    assert largest_error(LoopKernels(torch.float32), 64, CPU) < 1e-5
    assert largest_error(Wrong(torch.float32), 64, CPU) > TOLERANCE


def fail(*_):
    raise KernelError("NVRTC is not installed")


@pytest.mark.parametrize(
    ("layer", "device", "changes", "reason"),
    [
        ((64, "bf16"), {}, {}, None),
        ((64, "fp16"), {"major": 8, "minor": 0}, {}, None),
        ((64, "fp32"), {}, {}, "no products in fp32"),
        ((2_560, "bf16"), {}, {}, "2560 units does not fit"),
        ((1_760, "bf16"), {"multi_processor_count": 108}, {}, "1760 units does not fit"),
        ((64, "bf16"), {}, {"launched_kernels": fail}, "NVRTC is not installed"),
        ((64, "bf16"), {}, {"largest_error": lambda *_: 0.5}, "differ from torch's scan by 50%"),
        ((64, "bf16"), {}, {"largest_error": lambda *_: float("nan")}, "differ"),
    ],
)
def test_the_recurrence_is_persistent_where_it_fits_and_agrees(monkeypatch, layer, device, changes, reason):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(**(H100 | device)))
    usual = {"launched_kernels": lambda *_: LoopKernels(), "largest_error": lambda *_: 0.001}
    for name, function in (usual | changes).items():
        monkeypatch.setattr(training, name, function)
    found, description = choose_recurrence("auto", *layer, CUDA)
    assert choose_recurrence("torch", *layer, CUDA) == (None, "cuDNN")
    if reason is None:
        assert found == PersistentRecurrence(LoopKernels())
        assert description == "persistent kernels"
        return
    assert found is None
    assert description.startswith("cuDNN, because ")
    assert reason in description
    with pytest.raises(PrecisionError, match=reason):
        choose_recurrence("persistent", *layer, CUDA)


def test_a_cpu_trains_by_the_scan():
    assert choose_recurrence("auto", 64, "bf16", CPU)[0] is None
    with pytest.raises(PrecisionError, match="need a GPU"):
        choose_recurrence("persistent", 64, "bf16", CPU)
    with pytest.raises(ValueError, match="recurrence 'cudnn' is not one of auto, persistent, torch"):
        Recipe(recurrence="cudnn")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tones.write_tones(tmp_path_factory.mktemp("tones"))
    return Corpus(read_manifest(folder / "tones.jsonl"), folder / "cache", tones.RATE)


def trained(corpus, monkeypatch, recurrence, updates=2):
    monkeypatch.setattr(
        "tutti_asr_lab.training.acoustic.trainer.choose_recurrence", lambda *_: (recurrence, "persistent kernels")
    )
    config = dataclasses.replace(tones.TINY, layers=2)
    recipe = tones.recipe(updates=updates, micro_batch_s=8.0, precision="fp32")
    trainer = Trainer(config, recipe, corpus, [], CPU)
    trainer.fit_features()
    return trainer, [(progress.loss, progress.norm) for progress in trainer.run()]


def test_a_run_with_the_kernels_has_the_losses_and_gradients_of_one_with_torch(corpus, kernels, monkeypatch):
    ours, found = trained(corpus, monkeypatch, PersistentRecurrence(kernels))
    _, wanted = trained(corpus, monkeypatch, None)
    assert all(gru.recurrence is ours.recurrence for gru in ours.network.grus)
    for (loss, norm), (other_loss, other_norm) in zip(found, wanted, strict=True):
        assert loss == pytest.approx(other_loss, rel=2e-3)
        assert norm == pytest.approx(other_norm, rel=2e-2)
    assert trained(corpus, monkeypatch, PersistentRecurrence(kernels))[1] == found  # the same bits again


def test_a_run_ends_with_the_error_of_a_kernel_that_aborted(corpus, monkeypatch):
    class Aborted(LoopKernels):
        def check(self):
            raise KernelError("a block of the persistent GRU kernel timed out waiting for the others")

    with pytest.raises(KernelError, match="timed out"):
        trained(corpus, monkeypatch, PersistentRecurrence(Aborted(torch.float32)))
