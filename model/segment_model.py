"""Outputs of a second pass: what a served network computes from a whole finished segment.

A network with `segment_context` uses more context in a whole segment than in a stream, with the same weights. The
process that decodes loads the served checkpoint itself, by its path, and checks that the file is the one that is
served. It computes in exact 8-bit arithmetic, so outputs depend on no other segment, and are equal on every processor.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from model.acoustic import load_own
from model.ctc.two_pass import Reader
from model.errors import CheckpointError
from model.facts import ModelFacts


@runtime_checkable
class SegmentModel(Protocol):
    """An acoustic model that can process a whole segment in one call."""

    def read(self, segment: NDArray[np.int16]) -> NDArray[np.float32]:
        """Return log-probs (T, outputs) of a segment, (S,) in whole steps; callable on any thread."""


def reader_for(facts: ModelFacts, path: Path | None) -> Reader:
    """Return the reader of a served checkpoint at `path`, None for the shipped one.

    The checkpoint is loaded by the thread that reads the first segment. The reader raises: CheckpointError,
    PrecisionError.
    """
    config, digest = facts.own_config, facts.digest

    def read(pcm: NDArray[np.int16]) -> NDArray[np.float32]:
        return _loaded(path, digest).read(pcm)[config.delay_frames :]  # of the frames that a stream has had by then

    return Reader(read, config.frame_samples, config.frames_per_step, digest)


@lru_cache(maxsize=2)
def _loaded(path: Path | None, digest: str) -> SegmentModel:
    """Load the checkpoint with this SHA-256. Raises: CheckpointError, PrecisionError."""
    model = load_own(path, device="cpu", precision="int8")
    name = model.config.name if path is None else f"{path}"
    if model.facts.digest != digest:
        raise CheckpointError(
            f"{name} is not the model that is served: its SHA-256 is {model.facts.digest}, not {digest}; "
            "put the file back, or restart the server"
        )
    if not isinstance(model, SegmentModel):
        raise CheckpointError(f"{name} cannot process whole segments; use finals=fast")
    return model
