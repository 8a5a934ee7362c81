"""The numerics contract in plain torch: close to the float32 network, and bit-identical with itself."""

from itertools import pairwise

import pytest
import torch

from model.audio.mel import mel_filters
from model.config import ModelConfig
from model.gpu.segments import cut_points, product_segments
from model.gpu.triton.fourier import SECOND, filter_rows, fourier_matrix, split_matrix
from tests.support.networks.gpu_networks import SIZES, filled_block, fp16_network, noise, slabs_of
from tutti_asr_lab.gpu.reference import ReferenceStep

CAPACITY = 9


def run(network, slabs, pcm, read, write, *, bucket=None):
    block = filled_block(network.config, pcm, [*read, CAPACITY], write, bucket)
    ReferenceStep(network, slabs).enqueue(block, len(block.read), pcm.shape[1] // network.config.step_samples)
    return block.out[: len(pcm)]


@pytest.mark.parametrize("size", list(SIZES))
def test_the_contract_is_close_to_the_network_in_float32(size):
    network = fp16_network(SIZES[size])
    pcm = noise(3, 4 * network.config.step_samples)
    out = run(network, slabs_of(network, CAPACITY), pcm, [CAPACITY] * 3, [0, 1, 2])
    exact = fp16_network(SIZES[size]).float()
    wanted, _ = exact(pcm, exact.fresh_state(3))
    assert (out - wanted).abs().max() < 2e-2
    assert (out.exp() - wanted.exp()).abs().max() < 2e-3


@pytest.mark.parametrize(("depth", "segments"), [(1760, 4), (3840, 12), (480, 4), (96, 6)])
def test_segments_cover_the_depth_in_whole_steps_that_differ_by_one_at_most(depth, segments):
    cuts = cut_points(depth, segments)
    lengths = [high - low for low, high in pairwise(cuts)]
    assert cuts[0] == 0
    assert cuts[-1] == depth
    assert all(length % 16 == 0 for length in lengths)
    assert max(lengths) - min(lengths) <= 16
    assert lengths == sorted(lengths, reverse=True)


@pytest.mark.parametrize(("depth", "segments"), [(40, 2), (32, 3)])
def test_a_depth_that_cannot_be_cut_is_rejected(depth, segments):
    with pytest.raises(ValueError, match="cannot be cut"):
        cut_points(depth, segments)


@pytest.mark.parametrize("rows", [1, 16, 416, 640, 1248, 1760, 5280, 30_000])
@pytest.mark.parametrize("depth", [16, 64, 416, 480, 1760, 3840])
def test_every_layer_has_segments_that_its_depth_allows(rows, depth):
    for whole in (False, True):
        assert cut_points(depth, product_segments(rows, depth, whole=whole))


def test_the_fourier_matrix_in_two_parts_transforms_as_float64_does():
    window = torch.hann_window(400)
    samples = torch.randint(-32768, 32768, (400,)).double()
    wanted = torch.fft.rfft(samples * window.double(), 512)
    found = []
    for matrix in fourier_matrix(window, 512):
        first, second = split_matrix(matrix, 272, 512).double()
        assert not first[257:].any()
        assert not first[:, 400:].any()
        found.append((first + second / SECOND)[:257, :400] @ samples)
    assert (torch.complex(*found) - wanted).abs().max() < 1e-6 * wanted.abs().max()


@pytest.mark.parametrize("bins", [24, 80])
def test_filters_as_short_rows_are_the_filters(bins):
    filters = torch.from_numpy(mel_filters(ModelConfig(mel_bins=bins)))
    first, weights = filter_rows(filters, 96)
    whole = torch.zeros(96, filters.shape[0])
    for row, start in enumerate(first.tolist()):
        whole[row, start : start + weights.shape[1]] = weights[row]
    assert torch.equal(whole[:bins], filters.t())
    assert not whole[bins:].any()
    assert weights.shape[1] < 50
