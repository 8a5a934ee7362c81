"""Post-training quantization: limits of the integers, round_compensated rounding, folding without effect on outputs."""

import copy
import dataclasses

import numpy as np
import pytest
import torch

from model.torch_network.network import Network
from tests.support.networks.small_networks import SMALL, noise, small_network
from tutti_asr_lab.training.quantization.calibration import best_range, in_rows, inputs_of, quantized_inputs
from tutti_asr_lab.training.quantization.quantize import equalize, quantize
from tutti_asr_lab.training.quantization.rounding import error, nearest, round_compensated, row_scales
from tutti_asr_lab.training.quantization.run import divergence
from tutti_asr_lab.training.quantization.simulated import SimulatedNetwork


@pytest.fixture(scope="module")
def quantized():
    return quantize(small_network(), noise())


def outputs(network, recordings):
    pcm = in_rows(recordings, SMALL)
    with torch.no_grad():
        return network(pcm, network.fresh_state(len(pcm)))[0]  # (B, T, outputs)


def test_the_divergence_is_the_sum_for_letters_and_phones():
    torch.manual_seed(0)
    network = Network(dataclasses.replace(SMALL, phones=("a", "k", "t"))).eval()
    integers = quantize(network, noise())
    exact, seen = (outputs(each, noise()) for each in (network, SimulatedNetwork(integers).eval()))
    parts = zip(network.parts(exact), network.parts(seen), strict=True)
    expected = [float((left.exp() * (left - right)).sum(-1).mean()) for left, right in parts]
    assert min(expected) > 0
    assert divergence(network, integers, in_rows(noise(), SMALL)) == pytest.approx(sum(expected), rel=1e-3)


def test_integers_scales_and_zero_points_are_within_their_limits(quantized):
    for name, product in quantized.products.items():
        assert product.weight.dtype == np.int8, name
        assert np.abs(product.weight.astype(int)).max() <= 63, name
        assert np.abs(product.weight.astype(int)).max() >= 32, f"{name}: half of the integers are never used"
        assert (product.scale > 0).all(), name
        assert product.scale.dtype == product.bias.dtype == np.float32
        assert 0 <= product.input_zero <= 255
        assert product.input_scale == float(np.float32(product.input_scale)) > 0
    assert set(quantized.products) == {
        *("conv0", "conv1", "gru0.input", "gru0.recurrent", "gru1.input", "gru1.recurrent", "dense", "head")
    }
    assert set(quantized.tensors) == {
        *("features.mean", "features.scale", "lookahead.weight", "norm.weight", "norm.bias"),
        *(f"norms.{i}.{name}" for i in range(2) for name in ("weight", "bias")),
    }


def test_quantization_is_deterministic_and_does_not_change_the_network(quantized):
    network = small_network()
    before = copy.deepcopy(network.state_dict())
    again = quantize(network, noise())
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())
    for name, product in again.products.items():
        for field in dataclasses.fields(product):
            np.testing.assert_array_equal(getattr(product, field.name), getattr(quantized.products[name], field.name))


def test_the_quantized_network_has_nearly_the_networks_outputs(quantized):
    """On other noise than for calibration, the divergence is a hundredth of that of a network with other weights."""
    held_out = noise(seed=1)
    exact = outputs(small_network(), held_out)
    ours, other = outputs(SimulatedNetwork(quantized), held_out), outputs(small_network(seed=1), held_out)

    def divergence(found):
        return float((exact.exp() * (exact - found)).sum(-1).mean())

    assert 0 < divergence(ours) < 0.01 * divergence(other)


def test_less_than_a_step_of_audio_is_enough_for_calibration():
    assert quantize(small_network(), [noise()[0][:400]]).products["head"].input_scale > 0


def test_rows_contain_the_concatenated_audio():
    recordings = noise(seconds=3.0)
    rows = in_rows(recordings, SMALL, steps=10)  # 0.8 s each
    assert rows.shape == (3, 12_800)
    assert np.array_equal(rows.numpy().ravel(), np.concatenate(recordings)[: 3 * 12_800])


def test_equalizing_the_channels_does_not_change_the_function():
    network = small_network()
    folded = copy.deepcopy(network)
    equalize(folded, inputs_of(folded, in_rows(noise(), SMALL)))
    assert not torch.equal(folded.norms[0].weight, network.norms[0].weight)
    assert not torch.equal(folded.features.scale, network.features.scale)
    exact, found = outputs(network, noise(seed=1)), outputs(folded, noise(seed=1))
    torch.testing.assert_close(found, exact, rtol=0, atol=2e-3)  # float32, gains over two orders of magnitude
    assert float((found - exact).abs().mean()) < 1e-5


def test_equalizing_lowers_the_error_of_uneven_channels():
    network = small_network()
    folded = copy.deepcopy(network)
    rows = in_rows(noise(), SMALL)
    equalize(folded, inputs_of(folded, rows))

    def wrong(each, name, module):
        x, weight = inputs_of(each, rows)[name], each.get_submodule(module).weight
        seen = quantized_inputs(x, *best_range(x, weight.detach().square().sum(0)))
        return float(((seen - x) @ weight.detach().T).square().mean())

    for name, module in (("gru0.input", "grus.0.input"), ("dense", "dense")):
        assert wrong(folded, name, module) < 0.5 * wrong(network, name, module)


def correlated(rows=2_000, width=96):
    generator = torch.manual_seed(0)
    few = torch.randn(rows, width // 4, generator=generator, dtype=torch.float64)
    mixed = few @ torch.randn(width // 4, width, generator=generator, dtype=torch.float64)
    return mixed + 0.3 * torch.randn(rows, width, generator=generator, dtype=torch.float64)


def test_compensated_rounding_has_no_more_error_than_rounding_to_nearest_in_any_row():
    x = correlated()
    moments = x.T @ x / len(x)
    weight = torch.randn(40, x.shape[1], dtype=torch.float64, generator=torch.manual_seed(1))
    scale = row_scales(weight, moments)
    integers, plain = round_compensated(weight, scale, moments), nearest(weight, scale)
    assert torch.equal(integers, integers.round())
    assert float(integers.abs().max()) <= 63
    ours, theirs = (error(chosen * scale[:, None] - weight, moments) for chosen in (integers, plain))
    assert (ours <= theirs).all()
    assert float(ours.sum()) < 0.5 * float(theirs.sum())
    measured = ((integers * scale[:, None] - weight) @ x.T).square().mean(1)  # (out,)
    torch.testing.assert_close(ours, measured)


def test_a_dead_input_and_a_row_of_zeros_are_rounded_too():
    moments = torch.zeros(8, 8, dtype=torch.float64)
    weight = torch.zeros(3, 8, dtype=torch.float64)
    weight[0, 0] = 1.0
    scale = row_scales(weight, moments)
    integers = round_compensated(weight, scale, moments)
    assert (scale > 0).all()
    assert integers[1:].abs().sum() == 0


@pytest.mark.parametrize("shift", [-3.0, 0.0, 3.0, 30.0])
def test_zero_is_an_integer_and_outliers_do_not_set_the_range(shift):
    x = torch.randn(4_000, 16, generator=torch.manual_seed(0)) + shift
    x[0, 0] = 40.0 + shift
    scale, zero = best_range(x, torch.ones(16))
    assert 0 <= zero <= 255
    assert float(quantized_inputs(torch.zeros(1), scale, zero)) == 0.0
    assert float(x.quantile(0.999)) < (255 - zero) * scale < 40.0 + shift
    assert -zero * scale <= min(0.0, float(x.quantile(0.001))) + scale
