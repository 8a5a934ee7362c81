"""Exponential moving average of the weights of a run, which is what is validated and saved.

Source: Polyak and Juditsky 1992; the window grows at the start, so that random weights are soon forgotten, as in
tf.train.ExponentialMovingAverage.
"""

from __future__ import annotations

from typing import Any

import torch

from model.torch_network.network import Network


class MovingAverage:
    """Owner of the averaged network."""

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
