"""Slot model with steps recorded once per batch size and replayed: CUDA graphs on a GPU, closures on a CPU.

States never move: kernels read and write rows of the slabs by index. The slabs have two additional rows: one that
is always zero, read by new streams (so nothing is ever zeroed) and by padding rows, and one that is never read,
written by padding rows. A step copies its inputs from pinned memory and its outputs back to it inside
the graph. One block of pinned memory is sufficient: a step is launched after the previous one was finished.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor

from model.errors import PrecisionError
from model.gpu.block import StepBlock, StepMemory
from model.torch_network.network import Network
from model.torch_network.slabs import RowSpec, Slabs
from model.torch_network.slots import check_device

CHUNKS = (1, 2, 4, 8)
"""Numbers of steps per stream of a call. Beyond 8 the weights are read so rarely that a step gains little."""


class RecordedStep(Protocol):
    """A step as a sequence of kernels with fixed buffers and sizes, which can be recorded."""

    def enqueue(self, block: StepBlock, rows: int, steps: int) -> None:
        """Enqueue a step of `rows` rows by `steps` single steps on the current stream.

        It allocates nothing, copies nothing between host and device, and never waits. A chunk of steps is bit-identical
        to single ones, and no row's results depend on the other rows or on the number of rows.
        """


MakeStep = Callable[[Mapping[str, Tensor], int, int], RecordedStep]
"""make(slabs, rows, steps): the step on slabs of capacity + 2 rows, with at most `rows` rows by single steps, and at
most `steps` single steps."""


class RecordedSlots:
    """Slots of recorded steps; implements `batching.SlotModel`, `WarmupSizes`, `Overlapped` and `Chunked`."""

    def __init__(
        self,
        make_step: MakeStep,
        *,
        inputs: RowSpec,
        outputs: RowSpec,
        states: Mapping[str, RowSpec],
        device: torch.device,
        capacity: int,
        largest: int,
    ) -> None:
        """Allocate slabs and buffers; steps are recorded in `warm_up_step`, or at the first use of a size.

        Raises: ValueError for a capacity or a batch below 1.
        """
        if min(capacity, largest) < 1:
            raise ValueError(f"capacity and largest batch must be at least 1, not {capacity} and {largest}")
        self.capacity = capacity
        self.chunk_steps = tuple(steps for steps in CHUNKS if steps <= largest)
        self._device = device
        on_gpu = device.type == "cuda"
        self._slabs = Slabs(states, capacity + 2, device)
        self.state_bytes = self._slabs.row_bytes
        self._zero, self._trash = capacity, capacity + 1
        self._fresh = set(range(capacity))  # new slots: their rows still hold the state of an earlier stream
        most = bucket(largest)
        self._host = StepMemory(most, inputs, outputs, torch.device("cpu"), pinned=on_gpu)
        self._memory = StepMemory(most, inputs, outputs, device, pinned=False)
        self.inputs: NDArray[Any] = self._host.inputs["pcm"].numpy()[:largest]
        self._rows = self._host.inputs["rows"].numpy()
        self._read, self._write = self._host.inputs["read"].numpy(), self._host.inputs["write"].numpy()
        self._outputs: NDArray[Any] = self._host.outputs["out"].numpy()
        self.step = make_step(self._slabs.tensors, most, self.chunk_steps[-1])
        self._replays: dict[tuple[int, int], Callable[[], None]] = {}
        self._launched = 0  # rows by steps of the step in flight
        self._stream = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]
        self._done = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]

    @property
    def warmup_sizes(self) -> Sequence[int]:
        """Sizes with a recording: powers of two, and the largest batch."""
        largest = len(self.inputs)
        return sorted({bucket(rows) for rows in range(1, largest + 1) if bucket(rows) <= largest} | {largest})

    def warm_up_step(self, rows: int) -> None:
        """Record steps and chunks of this size and run one; afterwards the states are undefined."""
        for steps in self.chunk_steps:
            if rows * steps <= len(self.inputs):
                self._replay_of(bucket(rows), steps)
        self.run(range(min(rows, self.capacity)))

    def run(self, slots: Sequence[int], steps: int = 1) -> NDArray[Any]:
        """Step these slots on the first rows of `inputs`; see `batching.SlotModel` and `Chunked`."""
        self.launch(slots, steps)
        return self.finish()

    def launch(self, slots: Sequence[int], steps: int = 1) -> None:
        """Enqueue the step and return; see `batching.slot_model.Overlapped`.

        Raises: DeviceLost; any error of the device.
        """
        count = len(slots)
        size = bucket(count)
        padding = size - count
        read = [self._zero if slot in self._fresh else slot for slot in slots] if self._fresh else slots
        try:
            replay = self._replay_of(size, steps)
            self._rows[0] = count
            self._read[:size] = [*read, *[self._zero] * padding]
            self._write[:size] = [*slots, *[self._trash] * padding]
            replay()
        except Exception:
            check_device(self._device)
            raise
        self._fresh.difference_update(slots)
        self._launched = count * steps

    def finish(self) -> NDArray[Any]:
        """Wait for the launched step and return its outputs. Raises: DeviceLost."""
        try:
            if self._done is not None:
                self._done.synchronize()
        except Exception:
            check_device(self._device)
            raise
        return self._outputs[: self._launched].copy()

    def reset(self, slot: int) -> None:
        """Make the slot's next step start from the state of a new stream."""
        self._fresh.add(slot)

    def export(self, slot: int) -> bytes:
        """Return a copy of the slot's state, in the order of the spec."""
        with torch.cuda.stream(self._stream):
            return self._slabs.copy_out(self._zero if slot in self._fresh else slot)

    def restore(self, slot: int, state: bytes) -> None:
        """Overwrite the slot's state with one exported by the same spec."""
        with torch.cuda.stream(self._stream):
            self._slabs.copy_in(slot, state)
        self._fresh.discard(slot)

    def _replay_of(self, rows: int, steps: int) -> Callable[[], None]:
        replay = self._replays.get((rows, steps))
        if replay is None:
            with torch.inference_mode():
                replay = self._replays[rows, steps] = self._record(rows, steps)
        return replay

    def _record(self, rows: int, steps: int) -> Callable[[], None]:
        """Return a function that enqueues a step of this size: on a GPU a graph, after a run to compile its kernels."""
        block = self._memory.block(rows, steps)
        copies = [
            (self._memory.inputs.up_to(rows * steps), self._host.inputs.up_to(rows * steps)),
            (self._host.outputs.up_to(rows * steps), self._memory.outputs.up_to(rows * steps)),
        ]

        def enqueue() -> None:
            copies[0][0].copy_(copies[0][1], non_blocking=True)
            self.step.enqueue(block, rows, steps)
            copies[1][0].copy_(copies[1][1], non_blocking=True)

        if self._stream is None or self._done is None:
            return torch.inference_mode()(enqueue)
        stream, done = self._stream, self._done
        self._rows[0], self._read[:rows], self._write[:rows] = (
            rows,
            self._zero,
            self._trash,
        )  # changes no stream's state
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            enqueue()
            stream.synchronize()
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                enqueue()
            finally:
                graph.capture_end()

        def replay() -> None:
            torch.cuda.set_stream(stream)  # of this thread only, the engine's
            graph.replay()
            done.record(stream)

        return replay


def bucket(rows: int) -> int:
    """Return the size of the recording for a batch: the next power of two."""
    return 1 << (rows - 1).bit_length()


RUNGS = ("auto", "graph", "eager")
"""`eager`: calls of torch. `graph`: kernels for small batches in one CUDA graph. `auto`: `graph` where it runs."""


def choose_rung(rung: str, device: torch.device) -> str:
    """Resolve `auto` to a rung of a GPU. Raises: PrecisionError if the rung is unknown, or does not run here."""
    if rung == "persistent":
        raise PrecisionError("rung persistent is not served; it is measured by tutti_asr_lab.gpu of tutti-asr-lab")
    if rung not in RUNGS:
        raise PrecisionError(f"rung must be one of {', '.join(RUNGS)}, not {rung!r}")
    if rung == "auto":
        able = find_spec("triton") is not None and torch.cuda.get_device_capability(device) >= (8, 0)
        return "graph" if able else "eager"
    if rung != "eager" and find_spec("triton") is None:
        raise PrecisionError(f"rung {rung} needs Triton, which is part of CUDA builds of torch: pip install triton")
    return rung


def recorded_slots(
    network: Network, device: torch.device, *, capacity: int, largest: int, make_step: MakeStep | None = None
) -> RecordedSlots:
    """Return the slot model of a network in fp16, with the Triton kernels or the steps of `make_step`."""
    if make_step is None:
        from model.gpu.triton.step import TritonStep

        def make_step(slabs: Mapping[str, Tensor], rows: int, steps: int) -> RecordedStep:
            return TritonStep(network, slabs, largest_rows=rows, largest_steps=steps)

    config = network.config
    return RecordedSlots(
        make_step,
        inputs=RowSpec((config.step_samples,), torch.int16),
        outputs=RowSpec((config.frames_per_step, config.outputs), torch.float32),
        states={name: RowSpec(shape, dtype) for name, (shape, dtype) in network.state_shapes().items()},
        device=device,
        capacity=capacity,
        largest=largest,
    )
