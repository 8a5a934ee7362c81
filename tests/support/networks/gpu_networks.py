"""Small fp16 networks, slabs and blocks for tests of the GPU path; they run on a CPU."""

import torch

from model.config import ModelConfig
from model.gpu.block import StepMemory
from model.torch_network.network import Network, cast
from model.torch_network.slabs import RowSpec

FEW = {"hop_samples": 40, "window_samples": 100, "fft_size": 128, "step_samples": 320}  # samples and bins
SIZES = {
    "even": ModelConfig(name="even", conv_channels=32, hidden=64, layers=2, lookahead=4, mel_bins=16, **FEW),
    "odd": ModelConfig(name="odd", conv_channels=48, hidden=80, layers=1, lookahead=5, mel_bins=24, **FEW),
    "short": ModelConfig(
        name="short", conv_channels=16, hidden=48, layers=2, lookahead=2, mel_bins=16, **(FEW | {"step_samples": 160})
    ),  # a step of one frame
    "phones": ModelConfig(
        name="phones", conv_channels=16, hidden=48, layers=1, lookahead=2, mel_bins=16, phones=tuple("aeioupbtdk"),
        **FEW,
    ),
}  # fmt: skip
SHIPPED_FEATURES = ModelConfig(name="shipped-features", conv_channels=32, hidden=32, layers=1, lookahead=1)


def fp16_network(config, seed=0):
    """Return a network with random weights of realistic size that normalizes the features of noise."""
    torch.manual_seed(seed)
    network = Network(config).eval().requires_grad_(requires_grad=False)
    network.features.mean.fill_(-4.0)
    network.features.scale.fill_(0.3)
    for norm in (*network.norms, network.norm):
        norm.weight.copy_(torch.exp(0.3 * torch.randn(config.hidden)))
        norm.bias.copy_(0.3 * torch.randn(config.hidden))
    network.lookahead.weight.add_(0.3 * torch.randn_like(network.lookahead.weight))
    return cast(network, "fp16", torch.device("cpu"))


def slabs_of(network, capacity, seed=None):
    """Return slabs (capacity + 2, ...): zeros, or random states with a seed; row `capacity` is always zero."""
    generator = torch.Generator().manual_seed(seed or 0)
    slabs = {}
    for name, (shape, dtype) in network.state_shapes().items():
        slab = torch.zeros(capacity + 2, *shape, dtype=dtype)
        if seed is not None:
            values = torch.randn(slab.shape, generator=generator)
            slab.copy_(values * 1000 if dtype == torch.int16 else values * 0.5)
        slab[capacity] = 0
        slabs[name] = slab
    return slabs


def noise(rows, samples, seed=0):
    """Return PCM (rows, samples) int16 of varying loudness."""
    generator = torch.Generator().manual_seed(seed)
    level = torch.logspace(1, 4, rows + 1)[:rows, None]
    return (torch.randn(rows, samples, generator=generator) * level).clamp(-32768, 32767).to(torch.int16)


def empty_block(config, rows, steps):
    """Return zeroed buffers on the CPU for a step of this many rows by single steps."""
    outputs = RowSpec((config.frames_per_step, config.outputs), torch.float32)
    inputs = RowSpec((config.step_samples,), torch.int16)
    return StepMemory(rows * steps, inputs, outputs, torch.device("cpu"), pinned=False).block(rows, steps)


def filled_block(config, pcm, read, write, bucket=None):
    """Return a block of PCM (B, k S), padded to `bucket` rows that read the zero row and write the trash row.

    Its output is poisoned; `read` and `write` end with the slabs' capacity, the index of these rows.
    """
    *read, capacity = read
    rows, bucket = len(pcm), bucket or len(pcm)
    block = empty_block(config, bucket, pcm.shape[1] // config.step_samples)
    block.rows.fill_(rows)
    block.read.fill_(capacity)
    block.write.fill_(capacity + 1)
    block.read[:rows] = torch.tensor(read)
    block.write[:rows] = torch.tensor(write)
    block.pcm.fill_(12345)
    block.pcm[:rows] = pcm
    block.out.fill_(float("nan"))
    return block
