"""A network that reads whole segments: the streaming one, and above it GRU layers that run both ways.

What is heard later tells what was heard before, which a stream cannot wait for and a segment that has ended can. The
layers begin as the identity, so the outputs are the streaming network's at first, in the same frames.
Source: Narayanan et al. 2021, "Cascaded encoders", arXiv:2010.14606; Schuster and Paliwal 1997.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from model.config import ModelConfig
from model.torch_network.network import GRULayer, Network, State

ABOVE = ("both_ways.", "norm.", "dense.", "head.")
"""What comes behind the streaming network's lookahead: how the names of its weights begin."""


class BothWays(nn.Module):
    """One GRU from the first frame on and one from the last one back; their outputs are added."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.forwards, self.backwards = GRULayer(hidden, hidden), GRULayer(hidden, hidden)
        self.forwards.mute()
        self.backwards.mute()

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, H) -> (B, T, H)."""
        x = self.norm(x)
        fresh = x.new_zeros(x.shape[0], x.shape[2])
        onward: Tensor = self.forwards(x, fresh)[0]
        back: Tensor = self.backwards(x.flip(1), fresh)[0]
        return onward + back.flip(1)


class SegmentNetwork(Network):
    """A `Network` that must be given all of a segment at once; what it is given of states is that of its trunk."""

    def __init__(self, config: ModelConfig, dropout: float = 0.0) -> None:
        super().__init__(config, dropout)
        self.both_ways = nn.ModuleList(BothWays(config.hidden) for _ in range(config.bidirectional_layers))
        self.trunk_learns = True
        for module in self.modules():
            if isinstance(module, GRULayer):
                module.whole = True

    def freeze_trunk(self) -> None:
        """Let the layers that run both ways learn, and those above them; the trunk stays the streaming network."""
        for name, parameter in self.named_parameters():
            parameter.requires_grad = name.startswith(ABOVE)
        self.trunk_learns = False

    def encode(self, features: Tensor, state: State) -> tuple[Tensor, State]:
        """Normalised log-mel (B, 4n, F) of whole segments -> logits (B, n, outputs), next state of the trunk."""
        with torch.set_grad_enabled(self.trunk_learns and torch.is_grad_enabled()):
            x, after = self.hidden(features, state)
        for layer in self.both_ways:
            x = x + self.dropout(layer(x))
        return self.logits(x), after


def network_of(config: ModelConfig, dropout: float = 0.0) -> Network:
    """Return the network that a configuration describes, with random weights."""
    return (SegmentNetwork if config.bidirectional_layers else Network)(config, dropout)
