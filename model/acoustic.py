"""The acoustic model as the batching engine sees it: a step function, the shapes of its state, its configuration."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from model import checkpoint
from model.config import ModelConfig
from model.network import Network, State
from model.precision import cast, resolve_device, resolve_precision
from model.traced import SlabStep, TracedStep

MIN_ROWS = {"fp32": 4, "bf16": 2, "fp16": 2, "int8": 2}
"""Smallest batches whose rows do not depend on one another, to the bit; below, the library takes another kernel.
Source: measured on x86 with oneDNN, held by tests/model/test_network.py on the hardware at hand."""


@dataclass(frozen=True, slots=True)
class RowSpec:
    """One row of a named tensor: shape without the batch axis, and dtype."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class AcousticModel:
    """int16 PCM (B, step_samples) and state in; log-probs (B, frames_per_step, V) float32 and next state out.

    Satisfies `batching.StepModel` and `batching.SlabModel` by structure.
    """

    def __init__(self, network: Network, digest: str, *, device: str = "auto", precision: str = "auto") -> None:
        """Cast `network` in place. Raises: PrecisionError."""
        self.device = resolve_device(device)
        self.precision = resolve_precision(precision, self.device)
        self.digest = digest
        self.network = cast(network.eval(), self.precision, self.device)
        self._one_step = TracedStep(self.network)

    @classmethod
    def load(cls, path: Path | None = None, *, device: str = "auto", precision: str = "auto") -> AcousticModel:
        """Read a checkpoint, the shipped one if no path is given. Raises: CheckpointError, PrecisionError."""
        network, digest = checkpoint.load(path or checkpoint.SHIPPED)
        return cls(network, digest, device=device, precision=precision)

    @classmethod
    def random(cls, seed: int = 0, *, precision: str = "fp32", **sizes: Any) -> AcousticModel:
        """Make a small untrained network, for tests."""
        generator = torch.random.get_rng_state()
        torch.manual_seed(seed)
        small = ModelConfig(name="random", conv_channels=32, hidden=64, layers=2, lookahead=4)
        network = Network(dataclasses.replace(small, **sizes))
        torch.random.set_rng_state(generator)
        return cls(network, f"random-{seed}", device="cpu", precision=precision)

    @property
    def config(self) -> ModelConfig:
        """The configuration that the network was trained with."""
        return self.network.config

    @property
    def input_spec(self) -> RowSpec:
        """One step of PCM."""
        return RowSpec((self.config.step_samples,), torch.int16)

    @property
    def state_spec(self) -> Mapping[str, RowSpec]:
        """A stream's state by name; zeros when fresh."""
        return {name: RowSpec(shape, dtype) for name, (shape, dtype) in self.network.state_shapes().items()}

    @property
    def min_rows(self) -> int:
        """Smallest batch whose rows do not depend on one another, to the bit; smaller ones are padded to it."""
        return MIN_ROWS[self.precision]

    @torch.inference_mode()
    def step(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """Advance B streams by one step (or by several, if inputs holds several)."""
        if inputs.shape[1] == self.config.step_samples:
            return self._one_step(inputs, state)
        log_probs, after = self.network(inputs, state)
        return log_probs, after

    def in_slabs(self, inputs: Tensor, index: Tensor, slabs: Mapping[str, Tensor]) -> SlabStep:
        """Record a step on inputs, row index and states in the given memory; on a CPU (`batching.SlabModel`)."""
        return SlabStep(self.network, inputs, index, dict(slabs))
