"""The acoustic model, from a checkpoint: in torch or compiled in exact 8-bit arithmetic; recordings through either."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from model import checkpoint
from model.errors import PrecisionError
from model.int8.model import Int8Model
from model.precision import resolve_device, resolve_precision
from model.torch_model import TorchModel

AcousticModel = TorchModel | Int8Model
"""Both have `config`, `digest`, `precision`, `device`, `weight_bytes`, `slots` and `recurrent_product`."""

ROWS = 48  # recordings of similar length in one batch


def load_model(path: Path | None = None, *, device: str = "auto", precision: str = "auto") -> AcousticModel:
    """Read a checkpoint, the shipped one if no path is given, for the precision asked for or the fastest here.

    Raises: CheckpointError, PrecisionError.
    """
    path = path or checkpoint.SHIPPED
    quantized, digest = checkpoint.load_quantized(path)
    place = resolve_device(device)
    precision = resolve_precision(precision, place, quantized=quantized is not None)
    if precision != "int8":
        return TorchModel.load(path, device=device, precision=precision)
    if quantized is None:
        raise PrecisionError(
            f"{path} has no 8-bit weights: make a checkpoint that has them with `tutti quantize`, "
            "or use --precision auto"
        )
    return Int8Model(quantized, digest)


def log_probs_of(model: AcousticModel, recordings: Sequence[NDArray[np.int16]]) -> list[NDArray[np.float32]]:
    """Return the log-probs (T, V) of each recording, (S,) int16 with S > 0; silence fills its last step.

    They come from the slots that serve, so what is measured is what serves.
    """
    size = model.config.step_samples
    steps = [-(-len(pcm) // size) for pcm in recordings]
    longest_first = sorted(range(len(recordings)), key=lambda at: -steps[at])
    slots = model.slots(capacity=ROWS, largest=ROWS)
    found: dict[int, NDArray[np.float32]] = {}
    for first in range(0, len(recordings), ROWS):
        members = longest_first[first : first + ROWS]
        audio = np.zeros((len(members), steps[members[0]], size), np.int16)
        for slot, at in enumerate(members):
            audio[slot].reshape(-1)[: len(recordings[at])] = recordings[at]
            slots.reset(slot)
        outputs = []
        for step in range(audio.shape[1]):
            count = sum(steps[at] > step for at in members)  # the first of them: the others have ended
            slots.inputs[:count] = audio[:count, step]
            outputs.append(slots.run(range(count)))  # (B, frames_per_step, V)
        for slot, at in enumerate(members):
            found[at] = np.concatenate([rows[slot] for rows in outputs[: steps[at]]])
    return [found[at] for at in range(len(recordings))]
