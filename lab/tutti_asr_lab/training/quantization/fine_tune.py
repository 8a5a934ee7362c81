"""Quantization-aware fine-tuning: a simulated quantized network learns the outputs of the original network.

The loss is the divergence of its outputs from the teacher's on augmented training speech, for letters plus phones, each
of which is a distribution. Texts are not used, so the network only corrects the effects of quantization. Weights start
at their integers, and reach another integer only after many updates in one direction: if they start between two
integers, thousands of them change at once and undo the compensated rounding (model/LOG.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from model.config import ModelConfig
from model.int8.quantized import LARGEST_WEIGHT, QuantizedNetwork
from model.torch_network.network import Network
from tutti_asr_lab.training.acoustic.augment import Augmenter, to_tensor
from tutti_asr_lab.training.acoustic.data.corpus import Corpus, epoch_order
from tutti_asr_lab.training.acoustic.optimizer.optimizers import Schedule
from tutti_asr_lab.training.acoustic.recipe import Recipe
from tutti_asr_lab.training.quantization.calibration import in_rows
from tutti_asr_lab.training.quantization.simulated import SimulatedNetwork, SimulatedProduct

STEPS = 50  # steps per row: 4 s
ROWS = 16  # rows per batch: 64 s
LOG_EVERY = 25  # updates
PAUSE_S = (0.02, 0.6)  # between recordings


@dataclass(frozen=True, slots=True)
class Rates:
    """Peak learning rates of Adam, which changes a parameter by about its rate in each update."""

    weights: float = 0.01  # in units of integers
    input_scales: float = 3e-4  # for their logarithms
    rest: float = 5e-5  # biases, norms, lookahead


def fine_tune(
    quantized: QuantizedNetwork,
    teacher: Network,
    batches: Iterator[Tensor],
    updates: int,
    *,
    rates: Rates | None = None,
    announce: Callable[[str], None] = lambda _: None,
) -> QuantizedNetwork:
    """Fine-tune on batches of audio (B, S) int16, one per update; `quantized` is not changed."""
    student = SimulatedNetwork(quantized)
    teacher.eval()
    optimizer = _optimizer(student, rates or Rates())
    peaks = [group["lr"] for group in optimizer.param_groups]
    schedule = Schedule(updates, warmup=max(1, updates // 20), decay=0.9)
    losses: list[float] = []
    began_s = time.monotonic()
    for update in range(updates):
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            group["lr"] = peak * schedule(update)
        losses.append(learn(student, teacher, next(batches), optimizer))
        if (update + 1) % LOG_EVERY == 0 or update + 1 == updates:
            elapsed_s = time.monotonic() - began_s
            left_min = elapsed_s / (update + 1) * (updates - update - 1) / 60
            loss = np.mean(losses[-LOG_EVERY:])
            announce(f"update {update + 1}/{updates} divergence {loss:.6f} left {left_min:.1f} min")
    return student.numbers()


def learn(student: SimulatedNetwork, teacher: Network, pcm: Tensor, optimizer: torch.optim.Optimizer) -> float:
    """Make one update; return the divergence before it, in nats per frame."""
    with torch.no_grad():
        wanted, _ = teacher(pcm, teacher.fresh_state(len(pcm)))  # (B, T, outputs)
    found, _ = student(pcm, student.fresh_state(len(pcm)))
    loss = functional.kl_div(found.flatten(0, 1), wanted.flatten(0, 1), log_target=True, reduction="batchmean")
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    with torch.no_grad():
        for module in student.modules():
            if isinstance(module, SimulatedProduct):
                module.weight.clamp_(-LARGEST_WEIGHT, LARGEST_WEIGHT)
    return float(loss.detach())


def _optimizer(student: SimulatedNetwork, rates: Rates) -> torch.optim.Optimizer:
    products = [module for module in student.modules() if isinstance(module, SimulatedProduct)]
    weights = [product.weight for product in products]
    drifts = [product.drift for product in products]
    taken = {id(parameter) for parameter in [*weights, *drifts]}
    rest = [parameter for parameter in student.parameters() if id(parameter) not in taken]
    return torch.optim.Adam(
        [
            {"params": weights, "lr": rates.weights},
            {"params": drifts, "lr": rates.input_scales},
            {"params": rest, "lr": rates.rest},
        ],
        betas=(0.9, 0.98),
    )


def speech(corpus: Corpus, augmenter: Augmenter, recipe: Recipe, config: ModelConfig) -> Iterator[Tensor]:
    """Yield endless batches (ROWS, S) int16 of augmented training speech: recordings and pauses concatenated."""
    rng = np.random.default_rng(recipe.seed)
    needed = ROWS * STEPS * config.step_samples
    parts: list[NDArray[np.int16]] = []
    held = 0
    while True:
        for index in epoch_order(corpus.utterances, recipe.weights, recipe.speaker_cap, rng):
            pcm = corpus.pcm(index).astype(np.float32) / np.float32(32768)
            pause = np.zeros(int(rng.uniform(*PAUSE_S) * config.sample_rate), np.int16)
            parts += [to_tensor(augmenter(pcm, rng)).numpy(), pause]
            held += len(parts[-1]) + len(parts[-2])
            if held >= needed:
                yield in_rows(parts, config, STEPS)[:ROWS]
                parts, held = [], 0
