"""Networks of named sizes with random weights, which take as long as trained ones.

`ds2-5x1760` and `ds2-7x1760` have the recurrent stacks of Deep Speech 2 (Amodei et al. 2015, table 3: five and seven
layers of 1,760 units) after this project's convolutions. They have not been trained.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from model.config import ModelConfig
from model.torch_network.network import Network

_LARGE: dict[str, Any] = {"conv_channels": 640, "hidden": 1_760, "lookahead": 20}  # 20 output frames: 800 ms
NETWORKS: Mapping[str, ModelConfig] = {
    "tutti-small": ModelConfig(name="tutti-small", version="random"),
    "ds2-5x1760": ModelConfig(name="ds2-5x1760", version="random", layers=5, **_LARGE),
    "ds2-7x1760": ModelConfig(name="ds2-7x1760", version="random", layers=7, **_LARGE),
    "ds2-5x2560": ModelConfig(name="ds2-5x2560", version="random", layers=5, **(_LARGE | {"hidden": 2_560})),
    "tiny": ModelConfig(name="tiny", version="random", conv_channels=32, hidden=32, layers=2, lookahead=4),
}
NOISE_LEVEL = 3_000  # standard deviation of the benchmarks' audio: about -21 dBFS, the level of speech


class _WithoutOrthogonal(TorchFunctionMode):
    """Makes `orthogonal_` return its scaled Gaussian draw: 21 decompositions of size 1,760 take minutes."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Replace the QR decomposition; pass on all other calls."""
        if func is torch.linalg.qr:
            draw: Tensor = args[0]
            return draw / draw.shape[0] ** 0.5, torch.ones_like(draw[: draw.shape[1]])
        return func(*args, **(kwargs or {}))


def random_network(config: ModelConfig, seed: int = 1) -> Network:
    """Return a network with random weights in evaluation mode on the CPU; features are normalized for `noise`.

    Weights are those of an untrained network, so states and rounding errors are about as large as in a trained one.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        with _WithoutOrthogonal():
            network = Network(config)
        with torch.no_grad():
            pcm = noise(4, 8 * config.step_samples, seed)
            log_mel = network.features.log_mel(pcm.to(torch.float32) / 32_768)  # (4, n, F)
            network.features.mean.copy_(log_mel.mean((0, 1)))
            network.features.scale.copy_(1 / log_mel.std((0, 1)))
            for layer in (network.lookahead.weight, network.head.weight):
                layer.add_(torch.randn_like(layer), alpha=layer.shape[-1] ** -0.5)
    return network.eval()


def noise(rows: int, samples: int, seed: int = 1) -> Tensor:
    """Return seeded white noise, (B, S) int16."""
    drawn = torch.randn(rows, samples, generator=torch.Generator().manual_seed(seed))
    return (drawn * NOISE_LEVEL).clamp(-32_768, 32_767).to(torch.int16)


def weight_bytes(config: ModelConfig, bytes_a_weight: int = 2) -> int:
    """Return the bytes of the matrices that a step reads once; 2 bytes per weight in fp16."""
    return bytes_a_weight * weights(config)


def weights(config: ModelConfig) -> int:
    """Count the weights of a step's matrices: two convolutions, two products per layer, dense, head."""
    windows = 6 * config.mel_bins * config.conv_channels + 6 * config.conv_channels * config.hidden
    layers = config.layers * 6 * config.hidden**2
    return windows + layers + config.hidden**2 + config.hidden * config.outputs


def step_flop(config: ModelConfig) -> int:
    """Count the floating-point operations of one stream's step, 2 per weight and frame; conv0 has 2 T frames."""
    frames = config.frames_per_step
    first = 6 * config.mel_bins * config.conv_channels
    return 2 * frames * (weights(config) + first)


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Rates of a device, by default an H100: TB/s from memory and from the L2 cache, TFLOP/s of large fp16 products."""

    read_tb_s: float = 3.0  # as reached by a large copy
    product_tflop_s: float = 798.0
    cache_tb_s: float = 5.5  # Source: Luo et al., arXiv 2402.13499

    @classmethod
    def of_device(cls, device: torch.device) -> Ceilings:
        """Return the rates of this device; those of an H100 if it is unknown."""
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
        return cls(read_tb_s=4.3) if "H200" in name else cls()


def step_roofline_us(config: ModelConfig, rows: int, ceilings: Ceilings) -> float:
    """Return the lower bound of a step's time in µs: reading its weights once, or its operations.

    Weights below 32 MB stay in the L2 cache.
    """
    bytes_ = weight_bytes(config)
    rate = ceilings.cache_tb_s if bytes_ < 32e6 else ceilings.read_tb_s
    return max(bytes_ / rate / 1e6, rows * step_flop(config) / ceilings.product_tflop_s / 1e6)
