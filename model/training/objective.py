"""What is learned from one micro-batch: masks on the features, the network's outputs, the losses.

Losses are sums over the micro-batch, so that those of an update can be added up and divided once. It knows neither
processes nor updates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from model.network import Network
from model.precision import DTYPES
from model.training.augment import mask
from model.training.data.batches import Batch, Targets
from model.training.losses.ctc import consistency_loss, ctc_loss
from model.training.losses.denominator import Denominator
from model.training.losses.label_model import label_graph
from model.training.phones import PhoneHead
from model.training.recipe import Recipe

FIGURES = ("loss", "letters")  # added up over an update: nats of CTC over letters, and how many letters


@dataclass(frozen=True, slots=True)
class Losses:
    """`total` () is what to back-propagate, a sum over targets in float32; `figures` are those of `FIGURES`."""

    total: Tensor
    figures: tuple[float, ...]


class Objective:
    """Losses over letters, and a share of CTC over phones; owns the network that learns and its phone head.

    Of each recording the network sees `views` versions, with other masks and other dropout.
    """

    def __init__(
        self, network: Network, recipe: Recipe, precision: str, letters: Sequence[Sequence[int]], phones: int = 0
    ) -> None:
        """`letters` are the training texts, as indices into the vocabulary; with 0 `phones` they are no target."""
        self.network, self.recipe, self.dtype = network, recipe, DTYPES[precision]
        self.learning = nn.ModuleDict({"network": network})
        self.phone_head: PhoneHead | None = None
        self.denominator: Denominator | None = None
        if phones:
            self.phone_head = PhoneHead(network, phones)
            self.learning["phone_head"] = self.phone_head
        if recipe.denominator:
            graph = label_graph(letters, recipe.denominator_order, recipe.denominator_states)
            self.denominator = Denominator(graph, network.head.weight.device)

    def __call__(self, features: Tensor, batch: Batch, rng: np.random.Generator, update: int) -> Losses:
        """Losses of normalised log-mel (B, 4T, F) float32, which may be overwritten, after so many updates.

        `rng` is of this micro-batch alone, and so is the state of torch's generators, which dropout draws from.
        """
        network, recipe = self.network, self.recipe
        frames = batch.frames.repeat(recipe.views)
        features = features.repeat(recipe.views, 1, 1)  # (views * B, 4T, F)
        features = mask(features, (4 * frames).tolist(), recipe.augmentation, rng)
        with torch.autocast(features.device.type, self.dtype, enabled=self.dtype != torch.float32):
            logits, _ = network.encode(features, network.fresh_state(len(features)))  # (views * B, T, V)
            phones = self.phone_head.logits() if self.phone_head is not None else None  # (views * B, T, P + 1)
        log_probs, loss = self._ctc(logits[:, network.config.delay_frames :], frames, batch.letters)
        total = self._with_consistency(loss, log_probs, batch.frames)
        if self.denominator is not None and update >= recipe.denominator_from:
            total = total + recipe.denominator * self.denominator(log_probs, frames)
        letters = int(batch.letters.lengths.sum()) * recipe.views
        if phones is not None and batch.phones is not None:
            share = recipe.phone_weight
            each = letters / max(1, recipe.views * int(batch.phones.lengths.sum()))  # a phone counts as a letter
            log_probs, of_phones = self._ctc(phones, frames, batch.phones)
            of_phones = self._with_consistency(of_phones, log_probs, batch.frames)
            total = (1 - share) * total + share * each * of_phones
        return Losses(total, (float(loss.detach()), float(letters)))

    def _ctc(self, logits: Tensor, frames: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
        """Log-probabilities (views * B, T, V) float32, and the sum of their CTC losses, ()."""
        log_probs = functional.log_softmax(logits.float(), dim=-1)
        return log_probs, ctc_loss(log_probs, frames, targets.repeat(self.recipe.views))

    def _with_consistency(self, loss: Tensor, log_probs: Tensor, frames: Tensor) -> Tensor:
        """Add how far the views are apart, frames (B,)."""
        recipe = self.recipe
        if not recipe.consistency:
            return loss
        return loss + recipe.consistency * recipe.views * consistency_loss(log_probs, frames)
