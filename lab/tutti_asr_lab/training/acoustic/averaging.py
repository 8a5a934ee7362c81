"""Mean of the weights of several checkpoints: `python -m tutti_asr_lab.training.acoustic.averaging A B … --out FILE`.

The mean of runs that started from the same weights has a lower error rate than each of them, at the cost of one model.
Source: Wortsman et al. 2022, "Model soups".
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from model import checkpoint
from model.errors import CheckpointError, ModelError
from model.torch_network.checkpoint import load_network, save_network
from model.torch_network.network import Network


class MovingAverage:
    """Exponential moving average of the weights of a run, which is what is validated and saved.

    Source: Polyak and Juditsky 1992; the window grows at the start, so that random weights are soon forgotten, as in
    tf.train.ExponentialMovingAverage.
    """

    def __init__(self, network: Network, decay: float) -> None:
        """Start at the network's weights. A `decay` of 0.999 averages about 1,000 updates; 0 keeps the last weights."""
        self.decay = decay
        self.network = Network(network.config).to(network.head.weight.device).requires_grad_(False)
        self.begin(network)

    def begin(self, network: Network) -> None:
        """Reset to these weights and feature statistics; updates do not change the latter."""
        self.network.load_state_dict(network.state_dict())

    @torch.no_grad()
    def follow(self, network: Network, updates: int) -> None:
        """Add the weights after `updates` updates to the average."""
        decay = min(self.decay, (1 + updates) / (10 + updates))
        for mean, now in zip(self.network.parameters(), network.parameters(), strict=True):
            mean.lerp_(now, 1 - decay)

    def state_dict(self) -> dict[str, Any]:
        """State for a snapshot."""
        return self.network.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore from `state_dict`."""
        self.network.load_state_dict(state)


@torch.no_grad()
def mean(paths: Sequence[Path], shares: Sequence[float]) -> Network:
    """Network of the last checkpoint with the weighted mean of all weights; quantized weights count as floats.

    Its training record is that of the last checkpoint, plus digests and shares of all files.

    Raises: CheckpointError for files that are not checkpoints, or for networks of different shapes or symbols.
    """
    loaded = [load_network(path) for path in paths]
    networks, total = [network for network, _ in loaded], sum(shares)
    last = networks[-1]
    for path, network in zip(paths, networks, strict=True):
        if symbols_and_shapes(network) != symbols_and_shapes(last):
            raise CheckpointError(f"{path} and {paths[-1]} differ in symbols or shapes and cannot be averaged")
    summed = {name: torch.zeros_like(weight, dtype=torch.float64) for name, weight in last.state_dict().items()}
    for network, share in zip(networks, shares, strict=True):
        for name, weight in network.state_dict().items():
            summed[name] += weight.double() * (share / total)
    last.load_state_dict({name: weight.float() for name, weight in summed.items()})
    parts = [{"sha256": digest, "share": share / total} for (_, digest), share in zip(loaded, shares, strict=True)]
    last.config = replace(last.config, training={**last.config.training, "mean_of": parts})
    return last


def symbols_and_shapes(network: Network) -> tuple[object, ...]:
    """Properties that checkpoints must share to be averaged."""
    config = network.config
    shapes = {name: tuple(weight.shape) for name, weight in network.state_dict().items()}
    return config.vocabulary, config.phones, config.lookahead, shapes


def main() -> None:
    """Average the checkpoints of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoints", nargs="+", type=Path, help="files, or names of shipped models; two or more")
    parser.add_argument("--shares", type=float, nargs="+", help="weight of each checkpoint; equal by default")
    parser.add_argument("--out", type=Path, required=True, help="the checkpoint to write, with the last one's settings")
    options = parser.parse_args()
    shares = options.shares or [1.0] * len(options.checkpoints)
    if len(shares) != len(options.checkpoints) or min(shares) <= 0:
        parser.error(f"--shares: {len(options.checkpoints)} shares above 0 are needed, one for each checkpoint")
    try:
        save_network(mean([checkpoint.named(path) for path in options.checkpoints], shares), options.out)
    except (ModelError, OSError) as error:
        sys.exit(f"error: {error}")
    print(options.out)  # noqa: T201


if __name__ == "__main__":
    main()
