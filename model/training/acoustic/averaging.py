"""The mean of the weights of several checkpoints: `python -m model.training.acoustic.averaging A B … --out FILE`.

Runs that began at the same weights end in places whose mean reads better than either, for the same cost of a step.
Source: Wortsman et al. 2022, "Model soups". Owns neither training nor the choice of what is worth averaging.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from model import checkpoint
from model.errors import CheckpointError, ModelError
from model.torch_network.checkpoint import load_network, save_network
from model.torch_network.network import Network


@torch.no_grad()
def mean(paths: Sequence[Path], shares: Sequence[float]) -> Network:
    """Return the network of the last checkpoint with the weighted mean of all weights; integers count as floats.

    Its record of training is the last one's, and names the files that the mean is of.

    Raises: CheckpointError for files that are no checkpoints, or of networks of different shapes or symbols.
    """
    loaded = [load_network(path) for path in paths]
    networks, total = [network for network, _ in loaded], sum(shares)
    last = networks[-1]
    for path, network in zip(paths, networks, strict=True):
        if symbols_and_shapes(network) != symbols_and_shapes(last):
            raise CheckpointError(f"{path} and {paths[-1]} differ in symbols or shapes, so there is no mean")
    summed = {name: torch.zeros_like(weight, dtype=torch.float64) for name, weight in last.state_dict().items()}
    for network, share in zip(networks, shares, strict=True):
        for name, weight in network.state_dict().items():
            summed[name] += weight.double() * (share / total)
    last.load_state_dict({name: weight.float() for name, weight in summed.items()})
    parts = [{"sha256": digest, "share": share / total} for (_, digest), share in zip(loaded, shares, strict=True)]
    last.config = replace(last.config, training={**last.config.training, "mean_of": parts})
    return last


def symbols_and_shapes(network: Network) -> tuple[object, ...]:
    """What must be equal for a mean to mean something."""
    config = network.config
    shapes = {name: tuple(weight.shape) for name, weight in network.state_dict().items()}
    return config.vocabulary, config.phones, config.lookahead, shapes


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoints", nargs="+", type=Path, help="files, or names of shipped models; two or more")
    parser.add_argument("--shares", type=float, nargs="+", help="how much each counts; equal unless given")
    parser.add_argument("--out", type=Path, required=True, help="the checkpoint to write, with the last one's settings")
    options = parser.parse_args()
    shares = options.shares or [1.0] * len(options.checkpoints)
    if len(shares) != len(options.checkpoints) or min(shares) <= 0:
        parser.error("each checkpoint needs a share above 0")
    try:
        save_network(mean([checkpoint.named(path) for path in options.checkpoints], shares), options.out)
    except (ModelError, OSError) as error:
        sys.exit(f"error: {error}")
    print(options.out)  # noqa: T201


if __name__ == "__main__":
    main()
