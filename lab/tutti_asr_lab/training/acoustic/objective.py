"""Loss of one micro-batch: masks on the features, the network's outputs, the loss terms.

Losses are sums over the micro-batch, so that those of an update can be added and divided once. Knows nothing about
processes.

The phones of the text can be a second target in addition to its letters: English spelling is irregular, and a few hours
of speech are not enough to learn it together with the acoustics. Source: Fernández et al. 2007 (hierarchical CTC),
Sanabria and Metze 2018, arXiv:1807.06234.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from model.torch_network.network import DTYPES, Network
from tutti_asr_lab.training.acoustic.augment import mask
from tutti_asr_lab.training.acoustic.data.batches import Batch
from tutti_asr_lab.training.acoustic.losses.ctc import ctc_loss
from tutti_asr_lab.training.acoustic.losses.denominator import Denominator
from tutti_asr_lab.training.acoustic.losses.distillation import Teachers, distillation_loss
from tutti_asr_lab.training.acoustic.losses.label_model import label_graph
from tutti_asr_lab.training.acoustic.recipe import Recipe

FIGURES = ("loss", "letters")  # summed over an update: nats of CTC over letters, number of letters


@dataclass(frozen=True, slots=True)
class Losses:
    """Loss `total` () to back-propagate, a sum over targets in float32, and the values of `FIGURES`."""

    total: Tensor
    figures: tuple[float, ...]


class Objective:
    """Losses over letters, and over phones if the network has phone outputs."""

    def __init__(
        self,
        network: Network,
        recipe: Recipe,
        precision: str,
        texts: Sequence[Sequence[Sequence[int]]],
        teachers: Teachers | None = None,
    ) -> None:
        """Set up the losses. `texts`: the training texts as letters, then as phones if the network has these."""
        self.network, self.recipe, self.dtype, self.teachers = network, recipe, DTYPES[precision], teachers
        self.shares = (1 - recipe.phone_weight, recipe.phone_weight)[: len(texts)]
        first = 0 if recipe.denominator_letters else len(texts) - 1  # the decoder uses the last outputs
        self.denominators = {
            number: Denominator(
                label_graph(texts[number], recipe.denominator_order, recipe.denominator_states),
                network.head.weight.device,
            )
            for number in range(first, len(texts))
            if recipe.denominator
        }

    def __call__(self, features: Tensor, batch: Batch, rng: np.random.Generator, update: int) -> Losses:
        """Losses from normalized log-mel (B, 4T, F) float32, which may be overwritten, after `update` updates.

        `rng` belongs to this micro-batch, as does the state of torch's generators, from which dropout draws.
        """
        network, recipe = self.network, self.recipe
        frames = batch.frames
        taught = self._taught(batch)
        features = mask(features, (4 * frames).tolist(), recipe.augmentation, rng)
        with torch.autocast(features.device.type, self.dtype, enabled=self.dtype != torch.float32):
            outputs, _ = network.encode(features, network.fresh_state(len(features)))  # (B, T, outputs)
        outputs = outputs[:, network.config.delay_frames :].float()
        kinds = [targets for targets in (batch.letters, batch.phones) if targets is not None]
        letters = int(batch.letters.lengths.sum())
        total, found = torch.zeros((), device=outputs.device), 0.0
        for number, (logits, targets) in enumerate(zip(network.parts(outputs), kinds, strict=True)):
            log_probs = functional.log_softmax(logits, dim=-1)  # (B, T, V) or (B, T, P + 1)
            loss = ctc = ctc_loss(log_probs, frames, targets)
            if number in self.denominators and update >= recipe.denominator_from:
                loss = loss + recipe.denominator * self.denominators[number](log_probs, frames)
            if taught:
                learned = distillation_loss(log_probs, taught[number], frames)
                loss = (1 - recipe.distillation) * loss + recipe.distillation * learned
            each = letters / max(1, int(targets.lengths.sum()))  # a phone counts as a letter
            total = total + self.shares[number] * each * loss
            if targets is batch.letters:
                found = float(ctc.detach())
        return Losses(total, (found, float(letters)))

    def _taught(self, batch: Batch) -> tuple[Tensor, ...]:
        """Teachers' log-probabilities of the audio before the telephone line, by group of outputs; () without teachers.

        So the network learns to recognize in a narrow band what its teachers recognize in a wide one.
        Source: Li et al. 2017, arXiv:1708.05466 (teacher and student with parallel audio).
        """
        if self.teachers is None:
            return ()
        network = self.network
        own, pcm = network.features, batch.recorded.to(network.head.weight.device)
        with torch.no_grad():
            features, _ = own(pcm, network.fresh_state(len(pcm))["pcm"])  # (B, 4T, F)
        return self.teachers(features / own.scale + own.mean, self.dtype)
