"""Subjects of the measurements: steps of every rung, the persistent recurrence, slot models.

Only this file calls the GPU path directly; sections use `Bench`, `recurrence` and `slots`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from batching.slot_model import SlotModel
from model.config import ModelConfig
from model.gpu.block import StepBlock
from model.gpu.slots import recorded_slots
from model.torch_model import TorchModel
from model.torch_network.network import Network
from model.torch_network.network import cast as cast_network
from tutti_asr_lab.benchmarks.gpu.networks import NETWORKS, noise, random_network
from tutti_asr_lab.benchmarks.gpu.timing import Work, captured
from tutti_asr_lab.gpu.reference import ReferenceStep

EAGER, GRAPH, PERSISTENT = "eager", "graph", "persistent"
SPLIT, REFERENCE = "persistent, split", "reference"
"""Not used for serving on a GPU: each layer as a product and a persistent recurrence; the CPU reference."""
BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128)


class EagerStep:
    """The rung `eager`: gather, the network as written, scatter, by separate torch calls."""

    def __init__(self, network: Network, slabs: Mapping[str, Tensor]) -> None:
        self._network, self._slabs = network, slabs

    @torch.inference_mode()
    def enqueue(self, block: StepBlock, rows: int, steps: int) -> None:
        """Step the first `rows` rows, ignoring `block.rows`."""
        config = self._network.config
        pcm = block.pcm[:rows, : steps * config.step_samples]
        state = {name: slab.index_select(0, block.read[:rows]) for name, slab in self._slabs.items()}
        out, after = self._network(pcm, state)
        for name, slab in self._slabs.items():
            slab.index_copy_(0, block.write[:rows].long(), after[name])
        block.out[:rows, : steps * config.frames_per_step].copy_(out)


def rungs(device: torch.device) -> tuple[str, ...]:
    """Return the rungs that can run on a device; on a CPU the eager step in fp32 and the reference."""
    if device.type == "cuda":
        return (PERSISTENT, SPLIT, GRAPH, EAGER)
    return (EAGER, REFERENCE)


def fastest(device: torch.device) -> str:
    """Return the rung expected to be fastest on a device."""
    return rungs(device)[0] if device.type == "cuda" else rungs(device)[-1]


def served(device: torch.device) -> str:
    """Return the rung used for serving on a device."""
    return GRAPH if device.type == "cuda" else REFERENCE


def recurrence(weight: Tensor, bias: Tensor, device: torch.device) -> Any:
    """Return the persistent kernel for U (3H, H) fp16 and c (3H,) fp32."""
    from tutti_asr_lab.gpu.persistent import PersistentGru

    return PersistentGru(weight, bias.float(), device)


def make_step(rung: str, network: Network, slabs: Mapping[str, Tensor], rows: int, steps: int) -> Any:
    """Return the step of a rung over these slabs, for at most `rows` rows and `steps` steps."""
    if rung == EAGER:
        return EagerStep(network, slabs)
    if rung in {PERSISTENT, SPLIT}:
        from tutti_asr_lab.gpu.step import PersistentStep

        return PersistentStep(network, slabs, largest_rows=rows, largest_steps=steps, whole=rung == PERSISTENT)
    if rung == REFERENCE:
        return ReferenceStep(network, slabs)
    from model.gpu.triton.step import TritonStep

    return TritonStep(network, slabs, largest_rows=rows, largest_steps=steps)


@cache
def network_of(name: str, device: torch.device, precision: str) -> Network:
    """Return a network with random weights on a device; cached."""
    if precision == "fp32":
        return cast_network(random_network(NETWORKS[name]), "fp32", device)
    network = cast_network(random_network(NETWORKS[name]), precision, device)
    return network.requires_grad_(False)


def precision_of(rung: str, device: torch.device) -> str:
    """Return the precision of a rung: fp16, or fp32 for the eager step on a CPU."""
    return "fp32" if rung == EAGER and device.type == "cpu" else "fp16"


class Bench:
    """One rung's step of one network with its own slabs and block, on streams of noise."""

    def __init__(
        self, network: Network, rung: str, *, capacity: int, largest_rows: int, largest_steps: int = 1
    ) -> None:
        device = network.head.weight.device
        config = network.config
        self.config: ModelConfig = config
        self.device, self.capacity, self.largest_rows = device, capacity, largest_rows
        shapes = network.state_shapes()
        self.slabs = {
            name: torch.zeros((capacity + 2, *shape), dtype=dtype, device=device)
            for name, (shape, dtype) in shapes.items()
        }
        self._index = torch.full((2, largest_rows), capacity, dtype=torch.int32, device=device)  # read and write
        self._rows = torch.zeros(1, dtype=torch.int32, device=device)
        self._blocks: dict[int, StepBlock] = {}
        self.step = make_step(rung, network, self.slabs, largest_rows, largest_steps)
        self._graphs: dict[tuple[int, int], Work] = {}
        self._warm: dict[str, Tensor] = {}

    def block(self, steps: int = 1) -> StepBlock:
        """Return the buffers for chunks of `steps` steps; rows and index are shared."""
        if steps not in self._blocks:
            frames = steps * self.config.frames_per_step
            pcm = noise(self.largest_rows, steps * self.config.step_samples).to(self.device)
            out = torch.full((self.largest_rows, frames, self.config.outputs), float("nan"), device=self.device)
            self._blocks[steps] = StepBlock(self._rows, self._index[0], self._index[1], pcm, out)
        return self._blocks[steps]

    def fill(self, read: Sequence[int]) -> None:
        """Set the slots that rows read and write; the other rows are padding."""
        rows, pad = len(read), self.largest_rows - len(read)
        both = [[*read, *[self.capacity] * pad], [*read, *[self.capacity + 1] * pad]]
        self._index.copy_(torch.tensor(both, dtype=torch.int32))
        self._rows.fill_(rows)

    def warm_states(self) -> None:
        """Give every slot a nonzero state that depends only on the slot."""
        if not self._warm:
            generator = torch.Generator().manual_seed(2)
            for name, slab in self.slabs.items():
                drawn = torch.randn(slab[: self.capacity].shape, generator=generator)
                self._warm[name] = (drawn * (1_000 if slab.dtype == torch.int16 else 0.3)).to(slab)
        for name, slab in self.slabs.items():
            slab[: self.capacity].copy_(self._warm[name])

    def outputs(self, slots: Sequence[int], pcm: Tensor) -> Tensor:
        """Step these slots over their audio (B, k * S); returns (B, k * T, outputs) on the host."""
        steps = pcm.shape[1] // self.config.step_samples
        block = self.block(steps)
        block.out.fill_(float("nan"))
        self.fill(slots)
        block.pcm[: len(slots)].copy_(pcm)
        self.step.enqueue(block, bucket(len(slots)), steps)
        self.check()
        return block.out[: len(slots)].to("cpu", copy=True)

    def check(self) -> None:
        """Wait for the device and check whether a kernel gave up. Raises: KernelError."""
        if hasattr(self.step, "check"):
            self.step.check()

    def states(self, slots: Sequence[int]) -> dict[str, Tensor]:
        """Return the states of these slots, on the host."""
        return {name: slab[list(slots)].cpu() for name, slab in self.slabs.items()}

    def replay(self, rows: int, steps: int = 1) -> Work:
        """Return the graph of a step with `rows` rows."""
        if (rows, steps) not in self._graphs:
            block = self.block(steps)
            self._graphs[rows, steps] = captured(lambda: self.step.enqueue(block, rows, steps), self.device)
        return self._graphs[rows, steps]


def bucket(rows: int) -> int:
    """Return the smallest bucket for `rows` rows; above the largest one, `rows` itself."""
    return next((each for each in BUCKETS if each >= rows), rows)


def bench(name: str, rung: str, device: torch.device, *, rows: int, capacity: int = 0, steps: int = 1) -> Bench:
    """Return a bench of a named network."""
    network = network_of(name, device, precision_of(rung, device))
    return Bench(network, rung, capacity=capacity or rows, largest_rows=rows, largest_steps=steps)


def slots(
    network: Network, rung: str, device: torch.device, *, capacity: int, largest: int, steps: int = 1
) -> SlotModel:
    """Return the slot model for serving `capacity` streams, with chunks of up to `steps` steps."""
    if rung == EAGER:
        model = TorchModel(network, "random", device=device.type, precision=precision_of(rung, device), rung=rung)
        return model.slots(capacity=capacity, largest=largest)
    network = cast_network(network.eval(), precision_of(rung, device), device)
    step = partial(make_step, rung, network)
    made = recorded_slots(network, device, capacity=capacity, largest=largest, make_step=step)
    made.chunk_steps = tuple(chunk_step for chunk_step in made.chunk_steps if chunk_step <= steps)
    return made
