"""Recurrent language model in torch: a table of gates by piece, one GRU layer, a head."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.torch_network.network import GRULayer, Scan


class RecurrentNetwork(nn.Module):
    """Network from pieces (T, B) to logits (T, B, pieces) of the next piece.

    The GRU's input is one-hot, so its input product is a row of a table.
    """

    def __init__(self, pieces: int, hidden: int, dropout: float = 0.0) -> None:
        super().__init__()
        layer = GRULayer(1, hidden)
        self.table = nn.Embedding(pieces, 3 * hidden)
        self.recurrent = layer.recurrent
        self.head = nn.Linear(hidden, pieces)
        self.dropout = nn.Dropout(dropout)
        self.hidden = hidden
        nn.init.normal_(self.table.weight, 0.0, 0.05)
        with torch.no_grad():
            self.table.weight += layer.input.bias  # initial gates keep the state

    def forward(self, pieces: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (T, B, pieces), and the state (B, H) after the last piece."""
        states = self.states(pieces, state)
        return self.head(self.dropout(states)), states[-1].float()

    def states(self, pieces: Tensor, state: Tensor) -> Tensor:
        """States (T, B, H) of the GRU after each piece, starting from `state` (B, H)."""
        gates = self.table(pieces)
        if torch.is_autocast_enabled("cpu"):
            gates = gates.to(torch.get_autocast_dtype("cpu"))
        states: Tensor = Scan.apply(gates, self.recurrent.weight, self.recurrent.bias, state.to(gates.dtype))  # type: ignore[no-untyped-call]
        return states


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy in nats per piece; logits (T, B, pieces), targets (T, B)."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
