"""Torch module of the tagger, for training: embeddings, then convolutions of growing dilation over the words.

`model.punctuation.step` computes the same in compiled code. The last dimension of the output is four marks and the
capital.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.punctuation.marks import MARKS
from model.punctuation.weights import BUCKETS

DILATIONS = (1, 2, 4, 8, 1)  # a context of 16 words to each side: most of a sentence
EMBEDDING = 64
CHANNELS = 128
OUTPUTS = len(MARKS) + 1


class TaggerNetwork(nn.Module):
    """Logits of marks and of a capital for each word of a batch."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary + 1, EMBEDDING)
        self.endings = nn.Embedding(BUCKETS, EMBEDDING)
        self.beginnings = nn.Embedding(BUCKETS, EMBEDDING)
        for table in (self.words, self.endings, self.beginnings):
            nn.init.normal_(table.weight, std=0.1)
        self.input = nn.Linear(EMBEDDING, CHANNELS)
        self.blocks = nn.ModuleList(Block(dilation) for dilation in DILATIONS)
        self.norm = nn.LayerNorm(CHANNELS)
        self.output = nn.Linear(CHANNELS, OUTPUTS)

    def forward(self, rows: Tensor, valid: Tensor) -> Tensor:
        """Logits (B, T, 5) from `rows` (B, T, 3) of `Vocabulary`; `valid` (B, T) is false for padding."""
        summed = self.words(rows[..., 0]) + self.endings(rows[..., 1]) + self.beginnings(rows[..., 2])  # (B, T, 64)
        inside = valid[..., None].to(summed.dtype)
        hidden = self.input(functional.dropout(summed, 0.1, self.training)) * inside  # (B, T, 128)
        for block in self.blocks:
            hidden = block(hidden, inside)
        logits: Tensor = self.output(self.norm(hidden))
        return logits


class Block(nn.Module):
    """Residual convolution over a word and its neighbors at distance `dilation`."""

    def __init__(self, dilation: int) -> None:
        super().__init__()
        self.dilation = dilation
        self.norm = nn.LayerNorm(CHANNELS)
        self.mix = nn.Linear(3 * CHANNELS, CHANNELS)
        self.out = nn.Linear(CHANNELS, CHANNELS)

    def forward(self, hidden: Tensor, inside: Tensor) -> Tensor:
        """Map (B, T, C) to (B, T, C); `inside` (B, T, 1) is 0 for padding."""
        normal = self.norm(hidden) * inside
        edge = normal.new_zeros(normal.shape[0], self.dilation, normal.shape[2])
        wide = torch.cat([edge, normal, edge], 1)  # (B, T + 2 D, C)
        length = normal.shape[1]
        places = [i * self.dilation for i in range(3)]
        around = torch.cat([wide[:, place : place + length] for place in places], -1)  # (B, T, 3 C)
        mixed = functional.dropout(torch.relu(self.mix(around)), 0.1, self.training)
        added: Tensor = self.out(mixed) * inside
        return hidden + added
