"""The quantized network as a slot model: states in one slab of bytes, one compiled call per block of streams.

Large batches are divided among threads; rows are independent, so any division gives the same bits. Several steps of a
stream in one call are one longer step for the compiled code: each layer runs over all frames before the next layer
starts, so its weights are read once.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from model.attention_config import OwnConfig
from model.audio.mel import mel_filters
from model.config import CONTEXT, ModelConfig
from model.int8 import step as compiled
from model.int8.features import FeatureTables
from model.int8.product import COLUMNS
from model.int8.product_table import head_row, product_row
from model.int8.quantized import QuantizedNetwork
from model.int8.vectors import LANES, ROW
from model.machine.memory import ALIGNED, CompiledStates, KeptArrays, aligned, offsets_of, whole_lines

BLOCK = 32
"""Most steps of a compiled call: their work space fits the second-level cache. Source: measured, model/LOG.md."""
CHUNKS = (1, 2, 4, 8)
"""Numbers of steps per stream of a call, divisors of `BLOCK`. Source: measured, model/LOG.md."""


class PackedNetwork:
    """Constants of a quantized network in the format of the compiled step; shared by all its slots."""

    def __init__(self, network: QuantizedNetwork) -> None:
        """Pack the network. Raises: ValueError for widths that are not a multiple of sixteen."""
        config = network.config
        for name in ("mel_bins", "conv_channels", "hidden"):
            if getattr(config, name) % LANES:
                raise ValueError(f"int8 needs a {name} that is a multiple of {LANES}, not {getattr(config, name)}")
        self.config = config
        self._arrays = KeptArrays()  # their addresses are in the constants
        keep = self._arrays.keep
        tables = FeatureTables.of(config, mel_filters(config))
        self.constants = compiled.Constants(  # without the offsets of a call
            products=keep(self._products(network)),
            features=tables.plan(config, keep, network.tensors["features.mean"], network.tensors["features.scale"]),
            lookahead=keep(network.tensors["lookahead.weight"]),
            conv0_offsets=0,
            conv1_offsets=0,
            row_offsets=0,
        )
        self.fields, self.state_bytes = _fields(config)
        self.calls = {steps: Call(self, steps, BLOCK // steps) for steps in CHUNKS}
        """By number of steps per stream."""
        self.fresh = _fresh_state(network, self.fields, self.state_bytes)

    @property
    def weight_bytes(self) -> int:
        """Size of what a step reads in addition to states, in bytes."""
        return self._arrays.nbytes

    @property
    def chunks(self) -> Sequence[int]:
        """Numbers of steps per stream that a call may have."""
        return CHUNKS

    @property
    def thread_steps(self) -> int:
        """Least steps of a thread; a thread computes fewer hardly faster."""
        return LANES

    def work_space(self) -> WorkSpace:
        """Return the work space of a thread."""
        return WorkSpace(self.config)

    def run(self, work: WorkSpace, memory: tuple[int, int, int, int], count: int, steps: int) -> None:
        """Advance `count` streams by `steps` steps; `memory`: see `compiled.step`."""
        self.calls[steps](work, memory, count)

    def _products(self, network: QuantizedNetwork) -> NDArray[np.int64]:
        """Return the table of products, one row each."""
        norms = {f"gru{i}.input": f"norms.{i}" for i in range(network.config.layers)} | {"dense": "norm"}
        config, keep, rows = network.config, self._arrays.keep, []
        for name, product in network.products.items():
            norm = norms.get(name)
            letters = len(config.vocabulary)
            rows.append(
                (head_row(product, letters, keep) if name == "head" else product_row(product, keep))
                + [keep(network.tensors[f"{norm}.{part}"]) if norm else 0 for part in ("weight", "bias")]
            )
        return np.array(rows, np.int64)


class Call:
    """Arguments of the compiled step for a block of streams with `steps` steps each."""

    def __init__(self, network: PackedNetwork, steps: int, block: int) -> None:
        config = network.config
        frames = steps * config.frames_per_step
        self._offsets = (  # their addresses are in the constants
            _window_offsets(block, 2 * frames, config.mel_bins),
            _window_offsets(block, frames, config.conv_channels),
            np.arange(block * frames, dtype=np.int64) * config.hidden,
        )
        conv0, conv1, rows = (offsets.ctypes.data for offsets in self._offsets)
        self.sizes = _sizes(config, steps)
        self.constants = network.constants._replace(conv0_offsets=conv0, conv1_offsets=conv1, row_offsets=rows)
        self.fields, self.block = network.fields, block

    def __call__(self, work: WorkSpace, memory: tuple[int, int, int, int], count: int) -> None:
        """Run the compiled step; `memory`: see `step`."""
        compiled.step(compiled.Plan(self.sizes, self.fields, self.constants, work.addresses[self.block]), memory, count)


class CompiledNetwork(Protocol):
    """Constants of a network, and the compiled step over them."""

    @property
    def config(self) -> OwnConfig:
        """Sizes of its steps."""

    @property
    def chunks(self) -> Sequence[int]:
        """Numbers of steps per stream that a call may have."""

    @property
    def thread_steps(self) -> int:
        """Least steps of a thread; a thread computes fewer hardly faster."""

    @property
    def fresh(self) -> NDArray[np.uint8]:
        """State of a new stream, (state bytes,)."""

    def work_space(self) -> Any:
        """Return the work space of a thread."""

    def run(self, work: Any, memory: tuple[int, int, int, int], count: int, steps: int) -> None:
        """Advance `count` streams by `steps` steps; `memory`: see `model.int8.step.step`."""


class Int8Slots:
    """Slots for `capacity` streams; implements `batching.SlotModel`, `WarmupSizes` and `Chunked` by structure."""

    def __init__(self, network: CompiledNetwork, *, capacity: int, largest: int, threads: int = 1) -> None:
        """Allocate the slots. A batch has at most `largest` rows, divided among `threads` if there are enough.

        Raises: ValueError for a capacity or a batch below 1, MemoryError.
        """
        if min(capacity, largest) < 1:
            raise ValueError(f"capacity and largest batch must be at least 1, not {capacity} and {largest}")
        largest = min(largest, capacity)
        self._network, self.capacity = network, capacity
        config = network.config
        self.inputs = np.zeros((largest, config.step_samples), np.int16)  # PCM for the next steps
        self._output_shape = config.frames_per_step, config.outputs
        self._slots = np.zeros(largest, np.int64)
        self._states = CompiledStates(network.fresh, capacity=capacity)
        self.state_bytes = self._states.state_bytes
        self.reset, self.export, self.restore = self._states.reset, self._states.export, self._states.restore
        most = max(1, min(threads, -(-largest // network.thread_steps)))
        self._work = [network.work_space() for _ in range(most)]
        self._pool = ThreadPoolExecutor(len(self._work) - 1, "int8") if len(self._work) > 1 else None

    @property
    def chunk_steps(self) -> Sequence[int]:
        """Numbers of steps per stream that a call may run."""
        return [steps for steps in self._network.chunks if steps <= len(self.inputs)]

    @property
    def warmup_sizes(self) -> Sequence[int]:
        """Powers of two, and the largest batch: sufficient for timing, because no size needs preparation."""
        largest = len(self.inputs)
        return sorted({1 << power for power in range(largest.bit_length())} | {largest})

    def warm_up_step(self, rows: int) -> None:
        """Run a batch of this many rows; afterwards the states are undefined."""
        self.run(range(rows))

    def run(self, slots: Sequence[int], steps: int = 1) -> NDArray[np.float32]:
        """Advance slot `slots[i]` by `steps` steps, on rows i * steps … i * steps + steps - 1 of the inputs.

        Returns: log-probs (B * steps, frames_per_step, outputs) float32.
        """
        count = len(slots)
        self._slots[:count] = slots
        out = np.empty((count * steps, *self._output_shape), np.float32)
        parts = min(len(self._work), count, max(1, count * steps // self._network.thread_steps))
        if self._pool is None or parts == 1:
            self._run_rows(self._work[0], out, 0, count, steps)
            return out
        borders = [count * part // parts for part in range(parts + 1)]
        others = [
            self._pool.submit(self._run_rows, self._work[part], out, borders[part], borders[part + 1], steps)
            for part in range(1, parts)
        ]
        self._run_rows(self._work[0], out, 0, borders[1], steps)
        for other in others:
            other.result()
        return out

    def _run_rows(self, work: Any, out: NDArray[np.float32], first: int, last: int, steps: int) -> None:
        memory = (
            self.inputs.ctypes.data + first * steps * self.inputs.strides[0],
            self._slots.ctypes.data + first * self._slots.strides[0],
            self._states.slab.ctypes.data,
            out.ctypes.data + first * steps * out.strides[0],
        )
        self._network.run(work, memory, last - first, steps)


class WorkSpace:
    """Work space of one thread for `BLOCK` steps in total."""

    def __init__(self, config: ModelConfig) -> None:
        steps, longest = BLOCK, CHUNKS[-1]
        frames, outputs = config.step_samples // config.hop_samples, config.frames_per_step
        joined = config.window_samples - config.hop_samples + config.step_samples
        head = config.outputs + (LANES if config.phones else 0)  # padding of letters below a vector
        widths = (3 * config.hidden, 2 * config.conv_channels, head)  # conv0 has twice the frames
        wide = max(-(-width // COLUMNS) * COLUMNS for width in widths)
        lengths = {
            "pcm": steps * joined * 2 + 2 * config.fft_size,  # a window may be read past its frame
            "frames": LANES * 8,
            "transform": config.fft_size * ROW,
            "power": (config.fft_size // 2 + 1) * ROW,
            "band": LANES,
            "conv0": steps * (CONTEXT + frames) * config.mel_bins + ALIGNED,
            "conv1": steps * (CONTEXT + 2 * outputs) * config.conv_channels + ALIGNED,
            "rows": steps * outputs * config.hidden + ALIGNED,
            "state_rows": steps * config.hidden + ALIGNED,
            "x": steps * outputs * config.hidden * 4,
            "waiting": (config.lookahead + longest * outputs) * config.hidden * 2,
            "sums": steps * outputs * wide * 4,
            "recurrent_sums": steps * wide * 4,
            "outputs": wide * 4,
        }
        offsets, total = offsets_of(lengths)
        self._memory = aligned(total)
        start = int(self._memory.ctypes.data)
        del offsets["transform"]  # is before the power, where the compiled code expects it
        places = {name: start + offset for name, offset in offsets.items()}
        blocks = [BLOCK // each for each in CHUNKS]
        self.addresses = {block: compiled.Work(block=block, **places) for block in blocks}
        """By streams of a block."""


def _sizes(config: ModelConfig, steps: int) -> compiled.Sizes:
    return compiled.Sizes(
        samples=steps * config.step_samples,
        overlap=config.window_samples - config.hop_samples,
        hop=config.hop_samples,
        bands=config.mel_bins,
        channels=config.conv_channels,
        hidden=config.hidden,
        layers=config.layers,
        lookahead=config.lookahead,
        outputs=steps * config.frames_per_step,
        letters=len(config.vocabulary),
        phones=config.outputs - len(config.vocabulary),
    )


def _fields(config: ModelConfig) -> tuple[compiled.Fields, int]:
    """Return the offsets of the parts of a state, and its size in bytes."""
    hidden = 0  # GRU states, float32
    waiting = hidden + config.layers * config.hidden * 4  # frames without an output yet, bfloat16
    pcm = waiting + config.lookahead * config.hidden * 2  # samples for the next windows, int16
    conv0 = pcm + (config.window_samples - config.hop_samples) * 2  # quantized frames, like the next part
    conv1 = conv0 + CONTEXT * config.mel_bins
    size = conv1 + CONTEXT * config.conv_channels
    return compiled.Fields(hidden, waiting, pcm, conv0, conv1, stride=whole_lines(size)), size


def _fresh_state(network: QuantizedNetwork, fields: compiled.Fields, size: int) -> NDArray[np.uint8]:
    """Return the state of a new stream: zeros; in quantized parts the zero point."""
    state = np.zeros(size, np.uint8)
    state[fields.conv0 : fields.conv1] = network.products["conv0"].input_zero
    state[fields.conv1 :] = network.products["conv1"].input_zero
    return state


def _window_offsets(streams: int, frames: int, width: int) -> NDArray[np.int64]:
    """Return byte offsets of a convolution's windows in the work space: overlapping, stride 2, `frames` per stream."""
    stream = np.arange(streams, dtype=np.int64)[:, None] * (CONTEXT + 2 * frames) * width
    return np.ascontiguousarray((stream + np.arange(frames, dtype=np.int64) * 2 * width).ravel())
