"""A small untrained network with uneven channels, and noise to calibrate it on."""

import numpy as np
import torch

from model.config import ModelConfig
from model.torch_network.network import Network

SMALL = ModelConfig(name="random", conv_channels=32, hidden=64, layers=2, lookahead=4)


def small_network(seed=0):
    """Return a network with random gains, biases and statistics too, over two orders of magnitude."""
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    network = Network(SMALL).eval()
    with torch.no_grad():
        for norm in (*network.norms, network.norm):
            norm.weight.copy_(torch.exp(torch.randn(SMALL.hidden)))
            norm.bias.copy_(torch.randn(SMALL.hidden))
        network.features.mean.fill_(-9.0)  # of the noise below
        network.features.scale.copy_(torch.exp(0.5 * torch.randn(SMALL.mel_bins)))
        network.features.scale[3] *= 30  # a band that would determine the range of all
        network.conv0.product.weight.view(SMALL.conv_channels, -1, SMALL.mel_bins)[..., 3] /= 30
    torch.random.set_rng_state(state)
    return network


def noise(seconds=6.0, seed=0):
    """Return three recordings (S,) int16 of noise with a changing level."""
    rng = np.random.default_rng(seed)
    samples = int(seconds * SMALL.sample_rate / 3)
    levels = np.repeat(np.exp(rng.normal(5, 2, (3, samples // 800 + 1))), 800, axis=1)[:, :samples]
    return list(np.clip(rng.normal(size=(3, samples)) * levels, -32768, 32767).astype(np.int16))
