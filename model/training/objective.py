"""What is learned from one micro-batch: masks on the features, the network's outputs, the losses.

Losses are sums over the micro-batch, so that those of an update can be added up and divided once. It knows neither
processes nor updates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from model.config import BLANK
from model.network import Network
from model.precision import DTYPES
from model.training.augment import mask
from model.training.data.batches import Batch, Targets
from model.training.phones import PhoneHead
from model.training.recipe import Recipe

FIGURES = ("loss", "letters")  # added up over an update: nats of CTC over letters, and how many letters


@dataclass(frozen=True, slots=True)
class Losses:
    """`total` () is what to back-propagate, a sum over targets in float32; `figures` are those of `FIGURES`."""

    total: Tensor
    figures: tuple[float, ...]


class Objective:
    """CTC over letters, and a share of CTC over phones; owns the network that learns and its phone head."""

    def __init__(self, network: Network, recipe: Recipe, precision: str, phones: int | None) -> None:
        """`phones` is how many there are, None without a phone target."""
        self.network, self.recipe, self.dtype = network, recipe, DTYPES[precision]
        self.learning = nn.ModuleDict({"network": network})
        self.phone_head: PhoneHead | None = None
        if phones is not None:
            self.phone_head = PhoneHead(network, phones)
            self.learning["phone_head"] = self.phone_head

    def __call__(self, features: Tensor, batch: Batch, rng: np.random.Generator) -> Losses:
        """Losses of normalised log-mel (B, 4T, F) float32, which may be overwritten.

        `rng` is of this micro-batch alone, and so is the state of torch's generators, which dropout draws from.
        """
        network = self.network
        frames = batch.frames
        features = mask(features, (4 * frames).tolist(), self.recipe.augmentation, rng)
        with torch.autocast(features.device.type, self.dtype, enabled=self.dtype != torch.float32):
            logits, _ = network.encode(features, network.fresh_state(len(features)))  # (B, T, V)
            phones = self.phone_head.logits() if self.phone_head is not None else None  # (B, T, P + 1)
        loss = ctc_loss(logits[:, network.config.delay_frames :], frames, batch.letters)
        letters = int(batch.letters.lengths.sum())
        total = loss
        if phones is not None and batch.phones is not None:
            share = self.recipe.phone_weight
            each = letters / max(1, int(batch.phones.lengths.sum()))  # a phone's loss counts as a letter's
            total = (1 - share) * loss + share * each * ctc_loss(phones, frames, batch.phones)
        return Losses(total, (float(loss.detach()), float(letters)))


def ctc_loss(logits: Tensor, frames: Tensor, targets: Targets) -> Tensor:
    """Sum of the CTC losses of a batch, logits (B, T, V), in float32. Source: Graves et al. 2006."""
    log_probs = functional.log_softmax(logits.float(), dim=-1).transpose(0, 1)  # (T, B, V)
    return functional.ctc_loss(
        log_probs,
        targets.symbols.to(logits.device),
        frames,
        targets.lengths,
        blank=BLANK,
        reduction="sum",
        zero_infinity=True,  # a recording too short for its text has no gradient
    )
