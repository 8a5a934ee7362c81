"""The moving average of the weights that a run passes through: what is validated and saved.

Source: Polyak and Juditsky 1992; the growing window at the start, so that random weights are soon forgotten, is that of
tf.train.ExponentialMovingAverage.
"""

from __future__ import annotations

from typing import Any

import torch

from model.torch_network.network import Network


class MovingAverage:
    """Owns the averaged network, which learns nothing itself."""

    def __init__(self, network: Network, decay: float) -> None:
        """A `decay` of 0.999 looks back a thousand updates; 0 takes the weights as they are."""
        self.decay = decay
        self.network = Network(network.config).to(network.head.weight.device).requires_grad_(False)
        self.begin(network)

    def begin(self, network: Network) -> None:
        """Begin at these weights and statistics of features, which no update changes."""
        self.network.load_state_dict(network.state_dict())

    @torch.no_grad()
    def follow(self, network: Network, updates: int) -> None:
        """Take in the weights after so many updates."""
        decay = min(self.decay, (1 + updates) / (10 + updates))
        for mean, now in zip(self.network.parameters(), network.parameters(), strict=True):
            mean.lerp_(now, 1 - decay)

    def state_dict(self) -> dict[str, Any]:
        """For a snapshot."""
        return self.network.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore from `state_dict`."""
        self.network.load_state_dict(state)
