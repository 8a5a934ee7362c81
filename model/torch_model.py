"""Acoustic model in torch, in fp32, bf16 or fp16: step function, state shapes and slots."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from model import checkpoint
from model.config import ModelConfig
from model.facts import ModelFacts
from model.gpu.slots import RecordedSlots, choose_rung, recorded_slots
from model.machine.precision import resolve_device, resolve_precision
from model.torch_network.checkpoint import load_network
from model.torch_network.network import Network, State, cast
from model.torch_network.slabs import RowSpec
from model.torch_network.slots import TorchSlots
from model.torch_network.traced import SlabStep

MIN_ROWS = {"fp32": 16, "bf16": 2, "fp16": 2}
"""Smallest batches with bit-identical rows for any batch; for smaller ones the library uses another kernel.
Source: measured on x86 with oneDNN and MKL, whose fp32 products of fewer than 16 rows add in another order on Intel
processors with AVX-512; checked by tests/model/test_network.py on the machine that runs it."""


class TorchModel:
    """Maps int16 PCM (B, step_samples) and state to log-probs (B, frames_per_step, outputs) float32 and next state.

    Implements `model.torch_network.slots.StepModel` and `model.facts.AcousticModel` by structure.
    """

    def __init__(
        self, network: Network, digest: str, *, device: str = "auto", precision: str = "auto", rung: str = "auto"
    ) -> None:
        """Cast `network` in place; `auto` is the fastest precision of torch on this machine. Raises: PrecisionError.

        `rung`: kernels of fp16 (`model.gpu.slots`); the attribute is the chosen one.
        """
        self._place = resolve_device(device)
        self.device = torch.device(self._place.type)
        self.precision = resolve_precision(precision, self._place, quantized=False)
        self.digest = digest
        self.network = cast(network.eval(), self.precision, self.device)
        self.rung = choose_rung(rung, self.device) if self.precision == "fp16" else "eager"

    @classmethod
    def load(cls, path: Path | None = None, *, device: str = "auto", precision: str = "auto") -> TorchModel:
        """Read a checkpoint, the shipped GRU network if no path is given. Raises: CheckpointError, PrecisionError."""
        network, digest = load_network(checkpoint.GRU if path is None else checkpoint.named(path))
        return cls(network, digest, device=device, precision=precision)

    @classmethod
    def random(cls, seed: int = 0, *, precision: str = "fp32", **sizes: Any) -> TorchModel:
        """Return a small untrained network, for tests."""
        generator = torch.random.get_rng_state()
        torch.manual_seed(seed)
        small = ModelConfig(name="random", conv_channels=32, hidden=64, layers=2, lookahead=4)
        network = Network(dataclasses.replace(small, **sizes))
        torch.random.set_rng_state(generator)
        return cls(network, f"random-{seed}", device="cpu", precision=precision)

    @property
    def config(self) -> ModelConfig:
        """Configuration of the network's training."""
        return self.network.config

    @property
    def facts(self) -> ModelFacts:
        """What decoders and a server need of it."""
        return ModelFacts.own(self.config, self.digest, self.precision, self._place)

    @property
    def input_spec(self) -> RowSpec:
        """One step of PCM."""
        return RowSpec((self.config.step_samples,), torch.int16)

    @property
    def state_spec(self) -> Mapping[str, RowSpec]:
        """State of a stream by name; initially zeros."""
        return {name: RowSpec(shape, dtype) for name, (shape, dtype) in self.network.state_shapes().items()}

    @property
    def min_rows(self) -> int:
        """Smallest batch with bit-identical rows for any batch; smaller batches are padded to it."""
        return MIN_ROWS[self.precision]

    @torch.inference_mode()
    def step(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """Advance B streams by one step (or by several, if inputs holds several)."""
        log_probs, after = self.network(inputs, state)
        return log_probs, after

    def slots(self, *, capacity: int, largest: int, tile_rows: int | None = None) -> TorchSlots | RecordedSlots:
        """Return the model with slots for `capacity` streams, see `TorchSlots`; on a CPU as one compiled step.

        In fp16 with the kernels of a rung: rows are independent, and `tile_rows` has no effect.
        """
        if self.rung != "eager":
            return recorded_slots(self.network, self.device, capacity=capacity, largest=largest)
        # Not on a GPU: TorchScript compiles a step again at the second call of a shape, with other sums and so other
        # bits than at the first. Source: https://github.com/pytorch/pytorch/issues/74534, observed on an H100.
        record = partial(SlabStep, self.network) if self.device.type == "cpu" else None
        return TorchSlots(self, capacity=capacity, largest=largest, tile_rows=tile_rows, record=record)

    @property
    def threads(self) -> int:
        """Number of compute threads of a step, from torch."""
        return torch.get_num_threads()

    @property
    def weight_bytes(self) -> int:
        """Size of the weights that a step reads, in bytes."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.network.state_dict().values())

    def recurrent_product(self, rows: int) -> Callable[[], object]:
        """Return the largest product of a step, (rows, H) by (H, 3 H), on noise, for separate timing."""
        product = self.network.get_submodule("grus.0.recurrent")
        x = torch.randn(rows, self.config.hidden, dtype=self.network.dtype, device=self.device)
        return torch.inference_mode()(lambda: product(x).sum().item())
