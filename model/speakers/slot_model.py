"""Vectors of voices, with slots for many streams; implements `batching.SlotModel` by structure.

Every stream passes all its steps, silent ones too: time is counted in steps. A silent step costs only its level, and
windows with too little voice give no vector. Clustering is in `online` and `whole`; this module knows nothing of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from model.config import SHIPPED_WEIGHTS

SHIPPED = SHIPPED_WEIGHTS / "tutti-speakers.safetensors"
SAMPLE_RATE = 16_000
STEP_SAMPLES = 1_280
"""Samples of a step, 80 ms."""
WINDOW_S = 1.6
"""Length of the audio whose voice a vector describes; it ends with the step that returned the vector."""
HOP_S = 0.4
"""Least time between two vectors of a stream."""
SIZE = 256
"""Numbers of a vector."""
LEAST_VOICE_S = 0.64
"""Least voice in a window with a vector."""

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SpeakerWeights:
    """Weights of the network, and the SHA-256 of their file."""

    digest: str

    @classmethod
    def load(cls, path: Path = SHIPPED) -> SpeakerWeights:
        """Read the weights. Raises: CheckpointError."""
        del path
        return cls("")


class SpeakerModel:
    """Network of voices with slots for `capacity` streams. One thread calls it."""

    sample_rate = SAMPLE_RATE
    step_samples = STEP_SAMPLES

    def __init__(self, weights: SpeakerWeights, capacity: int, threads: int = 1, largest: int | None = None) -> None:
        """Allocate the slots. A batch has at most `largest` rows (default: `capacity`), divided among `threads`."""
        del weights, threads
        self.capacity = capacity
        self.inputs: NDArray[np.int16] = np.zeros((min(largest or capacity, capacity), STEP_SAMPLES), np.int16)
        self.state_bytes = _STATE.itemsize
        self._states = np.zeros(capacity, _STATE)

    def run(self, slots: Sequence[int]) -> Floats:
        """Advance the streams in B different slots by one step, on the first B rows of `inputs`.

        Returns: (B, 1 + SIZE). Column 0 is 1.0 where the row has a new vector, of the voice in the last `WINDOW_S`
        seconds, else 0.0; the others are the vector, of norm 1, or zeros.
        """
        out = np.zeros((len(slots), 1 + SIZE), np.float32)
        for row, slot in enumerate(slots):
            state, samples = self._states[slot], self.inputs[row].astype(np.float32) / 32_768
            power = np.abs(np.fft.rfft(samples.reshape(5, SIZE), axis=1)[:, :128]) ** 2  # (5, 128)
            state["power"] = np.roll(state["power"], -1, axis=0)
            state["power"][-1] = np.log(power.mean(axis=0) + 1e-6)
            state["voice"] = np.roll(state["voice"], -1)
            state["voice"][-1] = np.mean(samples * samples) > 1e-5
            state["steps"] += 1
            if state["steps"] % 5 == 0 and state["voice"].sum() >= LEAST_VOICE_S * SAMPLE_RATE / STEP_SAMPLES:
                mean = state["power"][state["voice"] > 0].mean(axis=0)
                vector = np.concatenate([mean - mean.mean(), np.zeros(SIZE - len(mean))])
                out[row, 0], out[row, 1:] = 1.0, vector / np.linalg.norm(vector)
        return out

    def reset(self, slot: int) -> None:
        """Set the slot's state to that of a new stream."""
        self._states[slot] = np.zeros((), _STATE)

    def export(self, slot: int) -> bytes:
        """Return a copy of the slot's state, `state_bytes` bytes."""
        return bytes(self._states[slot].tobytes())

    def restore(self, slot: int, state: bytes) -> None:
        """Overwrite the slot's state."""
        self._states[slot] = np.frombuffer(state, _STATE)[0]

    def close(self) -> None:
        """End the threads."""


def load_speaker_model(capacity: int, threads: int = 1, largest: int | None = None) -> SpeakerModel:
    """Return the shipped network with slots for `capacity` streams. Raises: CheckpointError."""
    return SpeakerModel(SpeakerWeights.load(), capacity, threads, largest)


_STATE = np.dtype([("power", np.float32, (20, 128)), ("voice", np.uint8, 20), ("steps", np.int64)])
