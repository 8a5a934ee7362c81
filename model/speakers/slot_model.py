"""Vectors of voices, with slots for many streams; implements `batching.SlotModel` by structure.

A stream passes all its steps, silent ones too, because time is counted in steps: a silent step costs a hundredth of one
with voice, and windows with too little voice have no vector. What is silent: `model/speakers/step.py`. Clustering is in
`online` and `whole`; this module knows nothing of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load

from model.audio.mel import slaney_filters
from model.checkpoint import digest_of, take_product
from model.config import SHIPPED_WEIGHTS
from model.errors import CheckpointError
from model.int8.features import FeatureTables
from model.int8.product_table import PRODUCT_COLUMNS, limits_of, product_row
from model.int8.quantized import QuantizedProduct
from model.int8.vectors import LANES, ROW
from model.machine.memory import CompiledStates, KeptArrays, aligned, offsets_of
from model.speakers import step as compiled
from model.speakers.step import BANDS, BLOCK, FRAMES, GATES, HIDDEN, LAYERS, MEL_ROW, OVERLAP, ROWS, RUNS, SIZE

SHIPPED = SHIPPED_WEIGHTS / "tutti-speakers.safetensors"
SAMPLE_RATE = 16_000
STEP_SAMPLES = compiled.SAMPLES
"""Samples of a step, 80 ms."""
OUTPUT_SCALE, ZERO = float(np.float32(1 / 127)), 128
"""Of the outputs of a layer as bytes; they are within ±1."""

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Features:
    """Mel energies of the network; implements `model.audio.mel.FeatureConfig`."""

    sample_rate: int = SAMPLE_RATE
    window_samples: int = 400
    hop_samples: int = 160
    fft_size: int = 512
    mel_bins: int = BANDS
    mel_low_hz: float = 0.0
    mel_high_hz: float = 8_000.0


@dataclass(frozen=True, slots=True)
class SpeakerWeights:
    """Weights of the network.

    `first` (4 * HIDDEN, BANDS): inputs of the first layer. `products`: outputs of the first layer, inputs and outputs
    of the others side by side, then the linear layer; gates are in the order input, forget, cell, output. `center`
    (SIZE,): mean of many vectors. `digest`: SHA-256 of the file.
    """

    step_samples: ClassVar = STEP_SAMPLES

    first: Floats
    products: tuple[QuantizedProduct, ...]
    center: Floats
    digest: str

    @classmethod
    def load(cls, path: Path = SHIPPED) -> SpeakerWeights:
        """Read the weights. Raises: CheckpointError."""
        shapes = [(4 * HIDDEN, HIDDEN), *[(4 * HIDDEN, 2 * HIDDEN)] * (LAYERS - 1), (SIZE, HIDDEN)]
        try:
            blob = path.read_bytes()
            tensors = load(blob)
            products = tuple(take_product(tensors, f"layers.{layer}", shape) for layer, shape in enumerate(shapes))
            return cls(
                first=_shaped(tensors["first"], 4 * HIDDEN, BANDS),
                products=products,
                center=_shaped(tensors["center"], SIZE),
                digest=digest_of(blob),
            )
        except Exception as error:  # safetensors raises an untyped error of its own
            raise CheckpointError(f"speakers: cannot read {path}: {error}; reinstall tutti") from error

    def slots(self, *, capacity: int, largest: int, tile_rows: int | None = None) -> SpeakerModel:
        """Return the network with slots for `capacity` streams and batches of at most `largest` rows."""
        del tile_rows  # rows are bit-identical in every batch
        return SpeakerModel(self, capacity, largest)


class SpeakerModel:
    """Network of voices with slots for `capacity` streams. One thread calls it."""

    sample_rate = SAMPLE_RATE
    step_samples = STEP_SAMPLES

    def __init__(self, weights: SpeakerWeights, capacity: int, largest: int | None = None) -> None:
        """Allocate the slots. A batch has at most `largest` rows (default: `capacity`)."""
        self.capacity = capacity
        self.inputs: NDArray[np.int16] = np.zeros((min(largest or capacity, capacity), STEP_SAMPLES), np.int16)
        self._fields, self.state_bytes = compiled.fields()
        self._states = CompiledStates(_fresh(self._fields, self.state_bytes), capacity=capacity)
        self.reset, self.export, self.restore = self._states.reset, self._states.export, self._states.restore
        self._arrays = KeptArrays()  # exist as long as this object
        self._work, work = _work()
        self._network = (self._packed(weights), self._fields, work)
        self._slots = np.zeros(len(self.inputs), np.int64)

    def run(self, slots: Sequence[int]) -> Floats:
        """Advance the streams in B different slots by one step, on the first B rows of `inputs`.

        Returns: (B, 1 + SIZE). Column 0 is the length in seconds of the audio up to now whose voice a new vector
        describes, 0.0 where there is none; the others are the vector, of norm 1, or zeros.
        """
        count, states = len(slots), self._states
        self._slots[:count] = slots
        out = np.zeros((count, 1 + SIZE), np.float32)
        for first in range(0, count, BLOCK):
            memory = (
                self.inputs.ctypes.data + first * self.inputs.strides[0],
                self._slots.ctypes.data + first * 8,
                states.slab.ctypes.data,
                states.stride,
                out.ctypes.data + first * out.strides[0],
            )
            compiled.step(self._network, memory, min(BLOCK, count - first))
        return out

    def _packed(self, weights: SpeakerWeights) -> compiled.Constants:
        keep, config = self._arrays.keep, Features()
        halves = [part for product in weights.products for part in _halves(product)]
        rows = [product_row(product, keep) for product in halves]
        table = np.array([[*row, *[0] * (PRODUCT_COLUMNS - len(row))] for row in rows], np.int64)
        ones = np.ones(BANDS, np.float32)
        return compiled.Constants(
            products=keep(table),
            features=FeatureTables.of(config, slaney_filters(config)).plan(config, keep, ones, ones),
            first=keep(weights.first.T),
            limits=keep(limits_of(weights.products[0].input_scale, weights.products[0].input_zero)),
            center=keep(weights.center),
            offsets=keep(np.arange(ROWS, dtype=np.int64) * HIDDEN),
            fresh=keep(
                _fresh(self._fields, self.state_bytes)[self._fields.runs :][: compiled.OUTPUTS + compiled.CELLS]
            ),
        )


def load_speaker_model(capacity: int) -> SpeakerModel:
    """Return the shipped network with slots for `capacity` streams. Raises: CheckpointError."""
    return SpeakerModel(SpeakerWeights.load(), capacity)


def _shaped(tensor: NDArray[Any], *shape: int) -> Floats:
    """Return a tensor in float32. Raises: ValueError for another shape."""
    if tensor.shape != shape:
        raise ValueError(f"a tensor has the shape {tensor.shape}, not {shape}")
    return tensor.astype(np.float32)


def _halves(product: QuantizedProduct) -> list[QuantizedProduct]:
    """Return the products of each `HIDDEN` inputs of a product."""
    parts = range(0, product.weight.shape[1], HIDDEN)
    return [replace(product, weight=np.ascontiguousarray(product.weight[:, at : at + HIDDEN])) for at in parts]


def _fresh(at: compiled.Fields, size: int) -> NDArray[np.uint8]:
    """Return the state of a new stream: all zero, which outputs have as bytes at `ZERO`."""
    state = np.zeros(size, np.uint8)
    for run in range(RUNS):
        begin = at.runs + run * (compiled.OUTPUTS + compiled.CELLS)
        state[begin : begin + compiled.OUTPUTS] = ZERO
    return state


def _work() -> tuple[NDArray[np.uint8], compiled.Work]:
    """Return zeroed work space, and the addresses of its parts."""
    config, runs = Features(), BLOCK * RUNS
    sizes = {
        "gains": BLOCK * 4,
        "pcm": BLOCK * (OVERLAP + STEP_SAMPLES) * 2 + 2 * config.fft_size,
        "frames": LANES * 8,
        "transform": config.fft_size * ROW,  # is before the power, where the compiled code expects it
        "power": (config.fft_size // 2 + 1) * ROW,
        "band": ROW,
        "mels": FRAMES * BLOCK * MEL_ROW,
        "runs": runs * 8,
        "rows": runs * 8,
        "inputs": ROWS * GATES,
        "sums": runs * GATES,
        "vector": SIZE * 4,
    }
    sizes |= {f"outputs{layer}": (runs + ROWS) * HIDDEN for layer in range(LAYERS)}
    offsets, total = offsets_of(sizes)
    memory = aligned(total)
    start = int(memory.ctypes.data)
    del offsets["transform"]
    places = {name: start + offset for name, offset in offsets.items()}
    first, second, third = (places.pop(f"outputs{layer}") for layer in range(LAYERS))
    return memory, compiled.Work(outputs=(first, second, third), **places)
