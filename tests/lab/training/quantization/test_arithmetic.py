"""Simulated arithmetic: equal to integers in numpy, and to the compiled step."""

import dataclasses

import numpy as np
import pytest
import torch

from model.int8.quantized import QuantizedProduct
from model.int8_model import Int8Model
from tests.support.networks.small_networks import SMALL, noise, small_network
from tutti_asr_lab.training.quantization.calibration import in_rows
from tutti_asr_lab.training.quantization.quantize import quantize
from tutti_asr_lab.training.quantization.simulated import SimulatedNetwork, SimulatedProduct

FLOAT_ROUNDING = 2e-6  # relative to the largest output: sums of some hundred terms in float32


@pytest.fixture(scope="module")
def quantized():
    return quantize(small_network(), noise())


def product(outputs, inputs, scale=0.031, zero=77, seed=0):
    rng = np.random.default_rng(seed)
    return QuantizedProduct(
        weight=rng.integers(-63, 64, (outputs, inputs)).astype(np.int8),
        scale=rng.uniform(0.001, 0.02, outputs).astype(np.float32),
        bias=rng.normal(size=outputs).astype(np.float32),
        input_scale=float(np.float32(scale)),
        input_zero=zero,
    )


def in_integers(numbers, x):
    """Definition of the product in numpy: (N, in) float32 to (N, out)."""
    inverse = np.float32(1) / np.float32(numbers.input_scale)
    q = np.clip(np.rint(x * inverse).astype(np.int64) + numbers.input_zero, 0, 255)
    sums = (q - numbers.input_zero) @ numbers.weight.astype(np.int64).T
    return sums * (numbers.scale * np.float32(numbers.input_scale)).astype(np.float64) + numbers.bias


@pytest.mark.parametrize(("scale", "zero"), [(0.031, 77), (0.0078, 128), (0.25, 0), (0.002, 255)])
def test_a_simulated_product_equals_integers_to_float_rounding(scale, zero):
    numbers = product(48, 300, scale, zero)
    x = np.random.default_rng(1).normal(size=(64, 300)).astype(np.float32)
    x[0] = 1e6  # beyond the range
    x[1] = (np.arange(300) - 150 + 0.5) * np.float32(scale)  # between two integers
    expected = in_integers(numbers, x)
    found = SimulatedProduct(numbers)(torch.from_numpy(x)).numpy()
    assert np.abs(found - expected).max() <= FLOAT_ROUNDING * np.abs(expected).max()


def test_a_half_is_rounded_to_the_even_integer():
    numbers = dataclasses.replace(product(1, 4, scale=1.0, zero=10), weight=np.eye(1, 4, dtype=np.int8))
    numbers = dataclasses.replace(numbers, scale=np.ones(1, np.float32), bias=np.zeros(1, np.float32))
    simulated = SimulatedProduct(numbers)
    rounded = [float(simulated(torch.tensor([x, 0, 0, 0.0]))) for x in (0.5, 1.5, 2.5, -0.5, -1.5)]
    assert rounded == [0, 2, 2, 0, -2]


def test_lookahead_rounds_its_inputs_to_bfloat16(quantized):
    lookahead = SimulatedNetwork(quantized).lookahead
    x = torch.randn(2, 7, 64, generator=torch.manual_seed(0))
    _, waiting = lookahead(x, torch.zeros(2, 4, 64))
    assert torch.equal(waiting, x[:, -4:].bfloat16().float())


def test_the_simulation_agrees_with_the_compiled_step(quantized):
    """Both round the same inputs; if float rounding moves one across a half, its integer differs by one."""
    recordings = noise(seconds=2.4, seed=1)
    pcm = in_rows(recordings, SMALL, steps=10)  # 0.8 s each
    simulated = SimulatedNetwork(quantized)
    with torch.no_grad():
        expected = simulated(pcm, simulated.fresh_state(len(pcm)))[0].numpy()  # (B, T, V)
    slots = Int8Model(quantized, "x").slots(capacity=len(pcm), largest=len(pcm))
    found = []
    for step in pcm.numpy().reshape(len(pcm), 10, -1).swapaxes(0, 1):
        slots.inputs[: len(pcm)] = step
        found.append(np.array(slots.run(range(len(pcm)))))
    gap = np.abs(np.concatenate(found, axis=1) - expected)
    assert np.median(gap) < 1e-4
    assert gap.max() < 0.1
