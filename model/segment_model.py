"""The second pass's network: a shipped one with the same output symbols, which reads whole finished segments.

It is `tutti-large`, some of whose layers run from the end of a segment to its start. Two networks err
in different places, so the mean of their probabilities errs less than either. It runs in exact 8-bit arithmetic, so its
outputs depend on no other segment, and are equal on every processor.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from model import checkpoint
from model.acoustic import load_segment_model
from model.config import ModelConfig
from model.ctc.two_pass import Reader
from model.int8_model import Int8Model


def reader_for(config: ModelConfig) -> Reader | None:
    """Return the second network of a streaming model, None if there is none of its symbols.

    It is loaded by the thread that reads the first segment. Raises: CheckpointError.
    """
    found = other_of(config)
    if found is None:
        return None
    path, digest = found
    return Reader(lambda pcm: read(_kept(path), pcm), config.frame_samples, config.frames_per_step, digest)


def other_of(config: ModelConfig) -> tuple[Path, str] | None:
    """The segment model of a model's symbols, and its file's digest. Raises: CheckpointError."""
    for path in checkpoint.SEGMENT_MODELS:
        other = checkpoint.read_config(path)
        if _frames_of(other) == _frames_of(config):
            return path, checkpoint.outline(path)[1]
    return None


def read(model: Int8Model, pcm: NDArray[np.int16]) -> NDArray[np.float32]:
    """Return log-probs (T, outputs) of a segment, (S,) in whole steps: of the frames that a stream has had by then."""
    return model.read(pcm)[model.config.delay_frames :]


def _frames_of(config: ModelConfig) -> tuple[object, ...]:
    """What must be equal for both networks' frames to mean the same times and symbols of the same language."""
    return (
        config.language,
        config.vocabulary,
        config.phones,
        config.step_samples,
        config.frame_samples,
        config.delay_frames,
    )


@lru_cache(maxsize=2)
def _kept(path: Path) -> Int8Model:
    return load_segment_model(path)
