"""The network: whole == stepped, alone == batched, and the recurrence compared with the library's."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.config import ModelConfig
from model.torch_model import TorchModel
from model.torch_network.network import GRULayer, Network
from model.torch_network.traced import SlabStep
from tests.support.needs import need_precision

SMALL = ModelConfig(conv_channels=32, hidden=64, layers=2, lookahead=4)
PHONES = ("a", "k", "t")


def small_network(seed=0):
    torch.manual_seed(seed)
    return Network(SMALL).eval()


def noise(rows, steps, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-12_000, 12_000, (rows, steps * SMALL.step_samples), dtype=torch.int16, generator=generator)


@torch.no_grad()
def run(network, pcm, split):
    """Return log-probs of `pcm` in calls of the given numbers of steps."""
    state, outputs, start = network.fresh_state(len(pcm)), [], 0
    for steps in split:
        end = start + steps * SMALL.step_samples
        log_probs, state = network(pcm[:, start:end], state)
        outputs.append(log_probs)
        start = end
    return torch.cat(outputs, dim=1)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6))
@settings(max_examples=25, deadline=None)
def test_any_split_into_calls_gives_the_same_log_probs(split):
    network, pcm = small_network(), noise(4, sum(split))
    whole = run(network, pcm, [sum(split)])
    assert torch.allclose(run(network, pcm, split), whole, atol=1e-5)
    assert torch.equal(run(network, pcm, split).argmax(-1), whole.argmax(-1))


def test_outputs_lag_the_audio_by_the_lookahead_and_do_not_depend_on_later_audio():
    network, pcm = small_network(), noise(2, 8)
    changed = pcm.clone()
    changed[:, 5 * SMALL.step_samples :] = 0
    before = 5 * SMALL.frames_per_step
    one, other = run(network, pcm, [8]), run(network, changed, [8])
    assert torch.equal(one[:, :before], other[:, :before])
    assert not torch.equal(one[:, before:], other[:, before:])


def test_row_convolution_uses_all_of_its_future():
    network, pcm = small_network(), noise(1, 6)
    with torch.no_grad():
        network.lookahead.weight[-1] = 1.0
    changed = pcm.clone()
    changed[:, 3 * SMALL.step_samples :] = 0
    first = 3 * SMALL.frames_per_step  # output `first` is for the frame `lookahead` before it, and depends on this one
    assert not torch.equal(run(network, pcm, [6])[:, first], run(network, changed, [6])[:, first])


def test_gru_scan_and_step_loop_agree_with_the_library():
    torch.manual_seed(0)
    layer, x, state = GRULayer(6, 8).double(), torch.randn(3, 7, 6).double(), torch.randn(3, 8).double()
    library = torch.nn.GRU(6, 8, batch_first=True).double()
    with torch.no_grad():
        library.weight_ih_l0.copy_(layer.input.weight)
        library.weight_hh_l0.copy_(layer.recurrent.weight)
        library.bias_ih_l0.copy_(layer.input.bias)
        library.bias_hh_l0.copy_(layer.recurrent.bias)
    expected, _ = library(x, state[None])
    scanned, last = layer(x, state)
    stepped, _ = layer.steps(x, state)
    assert torch.allclose(scanned, expected, atol=1e-12)
    assert torch.allclose(stepped, expected, atol=1e-12)
    assert torch.allclose(last, expected[:, -1], atol=1e-12)


def test_gru_scan_has_the_gradients_of_the_step_loop():
    torch.manual_seed(1)
    layer, x = GRULayer(6, 8).double(), torch.randn(3, 7, 6, dtype=torch.double, requires_grad=True)
    state, weight = torch.randn(3, 8, dtype=torch.double), torch.randn(3, 7, 8, dtype=torch.double)

    def gradients(forward):
        layer.zero_grad()
        out, _ = forward(x, state)
        return torch.autograd.grad((out * weight).sum(), [x, *layer.parameters()])

    for ours, reference in zip(gradients(layer), gradients(layer.steps), strict=True):
        assert torch.allclose(ours.double(), reference, atol=1e-5)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_row_is_bit_identical_in_every_batch(precision):
    """Alone (padded to min_rows) == anywhere in any batch, so transcripts do not depend on other streams."""
    need_precision(precision)
    torch.manual_seed(0)
    model = TorchModel(Network(dataclasses.replace(SMALL, hidden=416)), "x", device="cpu", precision=precision)
    pcm = noise(33, 5)

    def stepped(rows):
        state = model.network.fresh_state(len(rows))
        outputs = []
        for step in pcm[rows].split(SMALL.step_samples, dim=1):
            log_probs, state = model.step(step, state)
            outputs.append(log_probs)
        return torch.cat(outputs, 1)

    everyone = stepped(list(range(33)))
    for size in (model.min_rows, model.min_rows + 1, 24, 31):
        for first in (0, 33 - size):
            rows = list(range(first, first + size))
            assert torch.equal(stepped(rows), everyone[rows]), (precision, size, first)


@pytest.mark.parametrize("phones", [(), PHONES])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_step_in_slabs_is_bit_identical_to_the_network_and_stores_only_kept_rows(precision, phones):
    need_precision(precision)
    model, generator = TorchModel.random(precision=precision, phones=phones), torch.Generator().manual_seed(0)
    slabs = model.network.fresh_state(12)
    pcm, index = torch.zeros(8, SMALL.step_samples, dtype=torch.int16), torch.zeros(8, dtype=torch.int64)
    step = torch.inference_mode()(SlabStep(model.network, pcm, index, slabs))
    for first, count, kept in [(0, 8, 8), (0, 8, 8), (3, 5, 4), (0, 4, 0), (2, 4, 3), (1, 7, 7)]:
        index[:] = torch.randperm(12, generator=generator)[:8]
        pcm[:] = noise(8, 1, seed=first + count)
        rows, before = index[first : first + count], {name: slab.clone() for name, slab in slabs.items()}
        with torch.inference_mode():
            state = {name: slab[rows] for name, slab in before.items()}
            expected, after = model.network(pcm[first : first + count], state)
        assert torch.equal(step(first, count, kept), expected)
        for name, slab in slabs.items():
            before[name][rows[:kept]] = after[name][:kept]
            assert torch.equal(slab, before[name]), name


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_letters_and_phones_are_separate_distributions(precision):
    need_precision(precision)
    model = TorchModel.random(precision=precision, phones=PHONES)
    letters = len(model.config.vocabulary)
    slots = model.slots(capacity=3, largest=3)
    slots.inputs[:] = noise(3, 1).numpy()
    probabilities = np.exp(slots.run(range(3)))
    assert probabilities.shape == (3, model.config.frames_per_step, letters + 1 + len(PHONES))
    for part in (probabilities[..., :letters], probabilities[..., letters:]):
        assert np.abs(part.sum(-1) - 1).max() < 1e-5
