"""Voice activity detection: the Silero network with slots for many streams.

The weights are those of silero-vad 6.2.3's `silero_vad_16k_op15.onnx` (MIT License), which ships in `model/weights`;
`model/vad/step.py` computes the graph. Thresholds and endpoint rules belong to the server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.checkpoint import digest_of
from model.config import SHIPPED_WEIGHTS
from model.errors import CheckpointError
from model.int8.vectors import LANES
from model.machine.memory import CompiledStates, KeptArrays, aligned, offsets_of
from model.published.graphs.onnx_file import float_tensors
from model.vad import step as compiled
from model.vad.step import BANDS, BLOCK, FLOAT, FRAMES, HIDDEN, HOP, ROW_SAMPLES, STATE_BYTES, WIDTHS, WINDOW, WINDOWS

SHIPPED = SHIPPED_WEIGHTS / "silero-vad-6.onnx"

Floats = NDArray[np.float32]


class SileroVad:
    """Voice activity model: probability of speech in each 32 ms of 16-bit audio at 16 kHz."""

    sample_rate = 16_000
    step_samples = WINDOWS * WINDOW  # of a row, at most

    def __init__(self, tensors: Mapping[str, Floats], digest: str = "") -> None:
        """`tensors`: the graph's weights by name; `digest`: of its file.

        Raises: CheckpointError for others than silero-vad's.
        """
        self.digest = digest
        self._arrays = KeptArrays()
        try:
            self.weights = self._packed(tensors)  # exist as long as this object
        except (KeyError, ValueError) as error:
            raise CheckpointError(f"voice activity detection: not the weights of silero-vad: {error}") from error

    @classmethod
    def load(cls, path: Path = SHIPPED) -> SileroVad:
        """Read the graph. Raises: CheckpointError."""
        try:
            blob = path.read_bytes()
            tensors = float_tensors(blob)
        except (OSError, LookupError, ValueError) as error:
            raise CheckpointError(f"voice activity detection: cannot read {path}: {error}") from error
        return cls(tensors, digest_of(blob))

    def slots(self, *, capacity: int, largest: int, tile_rows: int | None = None) -> VadSlots:
        """Return the network with slots for `capacity` streams, in batches of at most `largest` rows.

        `tile_rows` has no effect: rows are bit-identical in every batch (tests/model/test_vad.py).
        """
        del tile_rows
        return VadSlots(self, capacity=capacity, largest=largest)

    def _packed(self, tensors: Mapping[str, Floats]) -> compiled.Weights:
        keep = self._arrays.keep
        basis = _shaped(tensors, "model.stft.forward_basis_buffer", (2 * (HOP + 1), 1, 2 * HOP))[:, 0]
        bands = HOP + 1
        convolutions = [
            _shaped(tensors, f"model.encoder.{layer}.reparam_conv.weight", (width, inputs, 3))
            for layer, (inputs, width) in enumerate(zip((bands, *WIDTHS), WIDTHS, strict=False))
        ]
        lstm, gates = "model.decoder.rnn", 4 * HIDDEN
        bias = _shaped(tensors, f"{lstm}.bias_ih", (gates,)) + _shaped(tensors, f"{lstm}.bias_hh", (gates,))
        return compiled.Weights(
            cosines=keep(_folded(basis[:bands])),
            sines=keep(_folded(basis[bands:])),
            convolutions=(
                keep(_taps(convolutions[0], slice(None), BANDS)),
                keep(_taps(convolutions[1], slice(None))),
                keep(_taps(convolutions[2], slice(1, None))),  # its first tap meets only padding
                keep(_taps(convolutions[3], slice(1, 2))),  # so do the outer ones
            ),
            biases=(
                keep(_shaped(tensors, "model.encoder.0.reparam_conv.bias", WIDTHS[:1])),
                keep(_shaped(tensors, "model.encoder.1.reparam_conv.bias", WIDTHS[1:2])),
                keep(_shaped(tensors, "model.encoder.2.reparam_conv.bias", WIDTHS[2:3])),
                keep(_shaped(tensors, "model.encoder.3.reparam_conv.bias", WIDTHS[3:])),
            ),
            inputs=keep(_shaped(tensors, f"{lstm}.weight_ih", (gates, HIDDEN)).T),
            recurrent=keep(_shaped(tensors, f"{lstm}.weight_hh", (gates, HIDDEN)).T),
            gates=keep(bias),
            head=keep(_shaped(tensors, "model.decoder.decoder.2.weight", (1, HIDDEN, 1))),
            head_bias=keep(_shaped(tensors, "model.decoder.decoder.2.bias", (1,))),
        )


class VadSlots:
    """The network with slots for its streams; implements `batching.SlotModel` and its `WarmupSizes`.

    A row of `inputs` has up to `WINDOWS` windows of 512 samples, and last their number: those of a recognizer's step
    come together.
    """

    def __init__(self, model: SileroVad, *, capacity: int, largest: int) -> None:
        self.capacity = capacity
        self.inputs: NDArray[Any] = np.zeros((min(largest, capacity), ROW_SAMPLES), np.int16)
        rows = len(self.inputs)
        self.warmup_sizes = [*(2**power for power in range((rows - 1).bit_length())), rows]
        self.state_bytes = STATE_BYTES
        self._states = CompiledStates(np.zeros(STATE_BYTES, np.uint8), capacity=capacity)
        self.reset, self.export, self.restore = self._states.reset, self._states.export, self._states.restore
        self._model = model  # keeps the weights
        self._work, work = _work()
        self._network = (model.weights, work)
        self._slots = np.zeros(len(self.inputs), np.int64)

    def run(self, slots: Sequence[int]) -> Floats:
        """Advance slot `slots[i]` by the windows of row i. Returns: probabilities of speech, (B, WINDOWS), else 0."""
        count, states = len(slots), self._states
        self._slots[:count] = slots
        out = np.zeros((count, WINDOWS), np.float32)
        rows, places, results = self.inputs.ctypes.data, self._slots.ctypes.data, out.ctypes.data
        compiled.step(self._network, (rows, places, states.slab.ctypes.data, states.stride, results), count)
        return out

    def warm_up_step(self, rows: int) -> None:
        """Run a batch of full rows."""
        self.inputs[:rows, -1] = WINDOWS
        self.run(range(rows))


def _work() -> tuple[NDArray[np.uint8], compiled.Work]:
    """Return zeroed work space, and the addresses of its parts."""
    numbers = {
        "samples": compiled.SAMPLES,
        "folded": BLOCK * FRAMES * 2 * HOP,
        "transform": BLOCK * FRAMES * 2 * BANDS,
        "magnitudes": BLOCK * (FRAMES + 2) * BANDS,
        "first": BLOCK * (FRAMES + 1) * WIDTHS[0],
        "second": BLOCK * 2 * WIDTHS[1],
        "third": BLOCK * WIDTHS[2],
        "fourth": BLOCK * WIDTHS[3],
        "inputs": BLOCK * 4 * HIDDEN,
        "states": BLOCK * HIDDEN,
        "recurrent": BLOCK * 4 * HIDDEN,
        "probability": LANES,
    }
    offsets, total = offsets_of({name: count * FLOAT for name, count in numbers.items()})
    memory = aligned(total)
    start = int(memory.ctypes.data)
    return memory, compiled.Work(**{name: start + offset for name, offset in offsets.items()})


def _shaped(tensors: Mapping[str, Floats], name: str, shape: tuple[int, ...]) -> Floats:
    """Return a weight. Raises: KeyError; ValueError for another shape."""
    if tensors[name].shape != shape:
        raise ValueError(f"{name} has shape {tensors[name].shape}, not {shape}")
    return tensors[name].astype(np.float32)


def _folded(basis: Floats) -> Floats:
    """Return half of the products of a symmetric or antisymmetric basis (bands, 2 * HOP), (HOP, BANDS)."""
    half = np.zeros((HOP, BANDS), np.float32)
    half[:, : len(basis)] = basis[:, 1 : HOP + 1].T
    other = basis[:, : HOP - 1 : -1].T  # of the samples at the same distances from the other end
    if np.any(basis[:, 0]) or not np.array_equal(np.abs(half[:, : len(basis)]), np.abs(other)):
        raise ValueError("the transform's window is not symmetric")
    half[HOP - 1] *= np.float32(0.5)  # the middle is added to itself
    return half


def _taps(weight: Floats, taps: slice, inputs: int | None = None) -> Floats:
    """Return the matrix (taps * inputs, outputs) of a convolution (outputs, inputs, taps), inputs padded with zeros."""
    outputs, given, _ = weight.shape
    chosen = weight[:, :, taps].transpose(2, 1, 0)  # (taps, inputs, outputs)
    padded = np.zeros((len(chosen), inputs or given, outputs), np.float32)
    padded[:, :given] = chosen
    return padded.reshape(-1, outputs)
