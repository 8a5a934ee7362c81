"""Whole segments through the quantized network in one call, including layers that run backward.

For the compiled step a segment is one long step of a new stream. Layers run one after another, so their weights are
read once per segment; without backward layers the outputs are bit-identical to those of a stream.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from model.int8.slots import Call, PackedNetwork, WorkSpace, aligned


def read_segment(network: PackedNetwork, pcm: NDArray[np.int16]) -> NDArray[np.float32]:
    """Return log-probs (T, outputs) of all frames of a segment, (S,) int16 in whole steps."""
    config = network.config
    steps = len(pcm) // config.step_samples
    out = np.empty((steps * config.frames_per_step, config.outputs), np.float32)
    if not steps:
        return out
    pcm, slots = np.ascontiguousarray(pcm), np.zeros(1, np.int64)
    state = aligned(network.fields.stride)
    state[: network.state_bytes] = network.fresh
    memory = (pcm.ctypes.data, slots.ctypes.data, state.ctypes.data, out.ctypes.data)
    Call(network, steps, 1)(WorkSpace(config, steps, steps), memory, 1)
    return out
