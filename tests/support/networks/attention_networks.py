"""Small attention networks with random weights, and their streams computed in torch."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from model.attention.quantized import QuantizedAttention
from model.attention_config import GELU_FACTOR, AttentionConfig, StepForm
from tutti_asr_lab.training.attention.network import AttentionNetwork
from tutti_asr_lab.training.attention.quantize import quantize

FORM = StepForm(new=8, ahead=12, left=24)
SIZES = {"width": 48, "heads": 4, "feed_forward": 64, "blocks": 2, "kernel": 15}


def random_network(form: StepForm = FORM, phones: int = 41, seed: int = 1) -> AttentionNetwork:
    """Return a network in floats, whose features have about the statistics of `noise`."""
    torch.manual_seed(seed)
    config = AttentionConfig(name="random", form=form, phones=tuple(map(str, range(phones))), **SIZES)
    network = AttentionNetwork(config).eval()
    network.features.mean.fill_(-5.0)
    network.features.scale.fill_(0.25)
    return network


def noise(streams: int, steps: int, form: StepForm = FORM, seed: int = 5) -> NDArray[np.int16]:
    """Return PCM of some streams, (streams, steps, samples) int16, of a loudness that changes."""
    random = np.random.default_rng(seed)
    loudness = 10.0 ** random.uniform(1, 4, (streams, steps, 1))
    return np.clip(random.normal(0, loudness, (streams, steps, form.new * 320)), -32_768, 32_767).astype(np.int16)


@cache
def quantized_network(form: StepForm = FORM, phones: int = 41) -> QuantizedAttention:
    """Return `random_network` in 8 bits."""
    return quantize(random_network(form, phones), list(noise(8, 20, form, seed=6).reshape(8, -1)))


@torch.no_grad()
def stream_in_floats(network: AttentionNetwork, pcm: NDArray[np.int16]) -> NDArray[np.float32]:
    """Return log-probs (T, outputs) of a stream's frames, T those of the steps in `pcm` (S,) less what it reads ahead.

    Each step computes a window with the keys, values and inputs of convolutions that the steps before have left.
    """
    config, form = network.config, network.config.form
    features = functional.pad(network.read(torch.from_numpy(pcm.copy())[None]), (0, 0, 1, 0)).transpose(1, 2)
    stem = network.stem(features).transpose(1, 2)[0]
    stem = stem * torch.sigmoid(GELU_FACTOR * stem)  # (T, D)
    heads, before = config.heads, config.before
    keys, values = ([torch.zeros(0, config.width) for _ in network.blocks] for _ in range(2))
    joined = [torch.zeros(before, config.width) for _ in network.blocks]
    outputs = []
    for begin in range(-form.ahead, len(stem) - form.window + 1, form.new):
        first = max(begin, 0)
        x, new = stem[first : begin + form.window], max(0, begin + form.new - first)
        for number, block in enumerate(network.blocks):
            x = x + 0.5 * block.feed1(x)
            query, key, value = block.attention_in(block.attention_norm(x)).split(config.width, 1)
            seen_keys, seen_values = torch.cat([keys[number], key]), torch.cat([values[number], value])
            split = [part.view(len(part), heads, -1).transpose(0, 1)[None] for part in (query, seen_keys, seen_values)]
            mixed = functional.scaled_dot_product_attention(*split)[0].transpose(0, 1).reshape(len(x), -1)
            x = x + block.attention_out(mixed)
            keys[number] = seen_keys[: len(seen_keys) - len(x) + new][-form.left :]
            values[number] = seen_values[: len(seen_values) - len(x) + new][-form.left :]
            gated = functional.glu(block.pointwise_in(block.convolution_norm(x)), -1)
            together = torch.cat([joined[number], gated])
            joined[number] = together[: before + new][-before:]
            mixed = block.depthwise(functional.pad(together.T[None], (0, before)))[0].T
            x = x + block.pointwise_out(functional.silu(mixed))
            x = block.norm(x + 0.5 * block.feed2(x))
        parts = network.parts(network.head(x[:new]))
        outputs.append(torch.cat([functional.log_softmax(part, -1) for part in parts], -1))
    return torch.cat(outputs).numpy()
