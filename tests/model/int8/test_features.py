"""Features of the compiled step: those of the network in torch, except for the order of operations."""

import numba
import numpy as np
import pytest
import torch

from model.audio.mel import mel_filters
from model.config import ModelConfig
from model.int8.features import FeatureTables, power_spectrum
from model.int8.vectors import LANES
from model.torch_network.network import LogMel

CONFIG = ModelConfig()


def power_of(pcm, config):
    """Return the power of sixteen frames, (bins, 16) float32."""
    tables, size = FeatureTables.of(config, mel_filters(config)), config.fft_size
    starts = pcm.ctypes.data + 2 * config.hop_samples * np.arange(LANES, dtype=np.int64)
    rows = np.zeros((size + size // 2 + 1, LANES), np.float32)

    @numba.njit
    def run(frames, vectors, addresses, size, rows):
        power_spectrum(frames, vectors, addresses, size, rows)

    addresses = tuple(int(each.ctypes.data) for each in (tables.window, tables.twiddles, tables.splits, tables.order))
    run(starts.ctypes.data, len(tables.window) // LANES, addresses, size, rows[size:].ctypes.data)
    return rows[size:]


@pytest.mark.parametrize("size", [512, 1_024])
def test_power_is_that_of_a_library_in_double_precision(size):
    config = ModelConfig(fft_size=size)
    pcm = np.random.default_rng(3).integers(-20_000, 20_000, 16 * 160 + 1_024).astype(np.int16)
    window = torch.hann_window(config.window_samples, dtype=torch.float64).numpy()
    frames = np.stack([pcm[160 * i : 160 * i + 400] * window / 32_768 for i in range(LANES)])
    expected = np.abs(np.fft.rfft(frames, size, axis=1)) ** 2
    found = power_of(pcm, config).T
    assert np.abs(found - expected).max() < 1e-5 * expected.max()


def test_bands_weigh_the_bins_as_the_filters_of_the_network_do():
    tables, filters = FeatureTables.of(CONFIG, mel_filters(CONFIG)), LogMel(CONFIG, mel_filters(CONFIG)).filters.numpy()
    for band, (first, count, at) in enumerate(tables.bands):
        weights = np.zeros(len(filters))
        weights[first : first + count] = tables.weights[at : at + count]
        assert np.abs(weights - filters[:, band]).max() < 1e-6


def test_a_transform_size_that_is_not_a_power_of_two_is_rejected():
    with pytest.raises(ValueError, match="600"):
        FeatureTables.of(ModelConfig(fft_size=600), mel_filters(ModelConfig(fft_size=600)))
