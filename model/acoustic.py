"""Loading of an acoustic model: one of this project, in exact 8-bit arithmetic or torch, or a published ONNX model.

Torch and ONNX Runtime are imported only for a model that needs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from model import checkpoint
from model.attention.checkpoint import load_attention
from model.attention_config import AttentionConfig
from model.errors import PrecisionError
from model.facts import AcousticModel
from model.int8_model import Int8Model
from model.machine.precision import resolve_device, resolve_precision
from model.machine.runtime import set_up_torch, threads_of
from model.published.files import Rewriting, is_published

ROWS = 48  # recordings of similar length in one batch


def load_model(
    path: Path | None = None,
    *,
    device: str = "auto",
    precision: str = "auto",
    threads: int | None = None,
    rewriting: Rewriting = "auto",
) -> AcousticModel:
    """Read a checkpoint or a published model, the shipped one if no path is given.

    Precision `auto` is the fastest one on this machine. `threads`: compute threads, 0 for all cores but one; None keeps
    torch's setting, and means 1 for 8-bit arithmetic and published models. `rewriting`: whether compiled steps run
    instead of published graphs.
    Raises: CheckpointError, PrecisionError, PublishedModelError.
    """
    if path is not None and is_published(path):
        from model.published.published_model import PublishedModel

        count = 1 if threads is None else threads_of(threads)
        return PublishedModel.load(path, device=device, precision=precision, rewriting=rewriting, threads=count)
    return load_own(path, device=device, precision=precision, threads=threads)


def load_own(
    path: Path | None = None, *, device: str = "auto", precision: str = "auto", threads: int | None = None
) -> AcousticModel:
    """Read a checkpoint; see `load_model`. Raises: CheckpointError, PrecisionError."""
    path = checkpoint.SHIPPED if path is None else checkpoint.named(path)
    if isinstance(checkpoint.read_config(path), AttentionConfig):
        if precision not in {"auto", "int8"} or device == "cuda":
            raise PrecisionError(
                f"{path} runs in 8-bit integers on the CPU alone: leave --precision and --device at auto, "
                "or choose a network that has the other forms, --model tutti-gru"
            )
        return load_attention(path, threads=1 if threads is None else threads_of(threads))
    quantized, digest = checkpoint.load_quantized(path)
    processor = resolve_device(device)
    precision = resolve_precision(precision, processor, quantized=quantized is not None)
    if precision != "int8":
        from model.torch_model import TorchModel

        if threads is not None:
            set_up_torch(threads)
        return TorchModel.load(path, device=device, precision=precision)
    if quantized is None:
        raise PrecisionError(
            f"{path} has no 8-bit weights: create a checkpoint with them by `tutti quantize`, or use --precision auto"
        )
    return Int8Model(quantized, digest, threads=1 if threads is None else threads_of(threads))


def log_probs_of(model: AcousticModel, recordings: Sequence[NDArray[np.int16]]) -> list[NDArray[np.float32]]:
    """Return the outputs (T, …) of each recording, (S,) int16 with S > 0; the last step is padded with silence.

    The outputs are computed by the slots used in serving, so measurements apply to serving. Outputs of a checkpoint end
    with the step of the last sample, those of a published model with the windows of a flush.
    """
    config = model.config
    longest_first = sorted(range(len(recordings)), key=lambda at: -len(recordings[at]))
    slots = model.slots(capacity=ROWS, largest=ROWS)
    at_once = len(slots.inputs)
    steps_of = config.steps_of if model.facts.published else lambda samples: -(-samples // config.step_samples)
    by_recording: dict[int, NDArray[np.float32]] = {}
    for first in range(0, len(recordings), at_once):
        members = longest_first[first : first + at_once]
        steps = [steps_of(len(recordings[at])) for at in members]
        audio = np.zeros((len(members), steps[0], config.step_samples), np.int16)
        for slot, at in enumerate(members):
            lead = config.lead_samples
            audio[slot].reshape(-1)[lead : lead + len(recordings[at])] = recordings[at]
            slots.reset(slot)
        outputs = []
        for step in range(audio.shape[1]):
            count = sum(length > step for length in steps)  # the first ones; the others have ended
            slots.inputs[:count, : config.step_samples] = audio[:count, step]
            outputs.append(slots.run(range(count)))  # (B, frames_per_step, …)
        for slot, at in enumerate(members):
            by_recording[at] = np.concatenate([rows[slot] for rows in outputs[: steps[slot]]])
    return [by_recording[at] for at in range(len(recordings))]
