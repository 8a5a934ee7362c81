"""A turn model: the probability that a speaker has finished, from the last 8 s of audio, in ONNX Runtime.

Any graph of Smart Turn's form: one input `input_features`, float32 (B, 80, 800), Whisper's log-mel spectrum; the first
output is the probability, (B, 1), though it may be named `logits`. `smart-turn-v3.2-cpu.onnx` (BSD 2-Clause) is in the
package pipecat-ai. It has no state between questions. Batches save no time on a CPU, so questions come one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from model.errors import CheckpointError, PublishedModelError
from model.published.files import require_runtime
from model.published.graphs.metadata import Graph
from model.turn_ends.whisper_features import BANDS, FRAMES, SAMPLES, log_mel

INPUT = "input_features"


class TurnModel:
    """A loaded turn model. Not safe for two threads at a time."""

    def __init__(self, graph: Graph) -> None:
        """Raises: CheckpointError if it is not of this form."""
        self._session = graph.session
        self._check(graph)

    @classmethod
    def load(cls, path: Path) -> TurnModel:
        """Read the graph and ask it once. Raises: CheckpointError, MissingPackage."""
        if not path.is_file():
            raise CheckpointError(f"turn model {path}: no such file")
        require_runtime(path)
        try:
            return cls(Graph.load(path))
        except PublishedModelError as error:
            raise CheckpointError(f"turn model: {error}") from error

    def probability(self, samples: NDArray[np.int16]) -> float:
        """Return the probability that the turn is over after these samples at 16 kHz, of which the last 8 s count."""
        return float(self._run(log_mel(samples[-SAMPLES:]))[0, 0])

    def _run(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        outputs: list[NDArray[np.float32]] = self._session.run(None, {INPUT: features[None]})
        return outputs[0]

    def _check(self, graph: Graph) -> None:
        """Raises: CheckpointError."""
        inputs = [(value.name, value.type, value.shape) for value in graph.inputs]
        if len(inputs) != 1 or not _fits(*inputs[0]):
            described = ", ".join(f"{name} {kind} {list(shape)}" for name, kind, shape in inputs)
            raise CheckpointError(
                f"turn model {graph.path}: input is {described}; expected {INPUT} tensor(float) "
                f"[batch, {BANDS}, {FRAMES}], as Smart Turn v3 has"
            )
        try:
            answer = self._run(log_mel(np.zeros(0, np.int16)))
        except Exception as error:
            raise CheckpointError(f"turn model {graph.path} fails on silence: {str(error).splitlines()[0]}") from error
        if answer.shape != (1, 1) or not 0.0 <= float(answer[0, 0]) <= 1.0:
            raise CheckpointError(
                f"turn model {graph.path}: output is {list(answer.shape)}; expected a probability, [batch, 1]"
            )


def _fits(name: str, kind: str, shape: Sequence[int | str | None]) -> bool:
    """Whether an input is that of a turn model; an axis of any size fits."""
    if name != INPUT or kind != "tensor(float)" or len(shape) != 3:
        return False
    return all(
        not isinstance(size, int) or size == wanted for size, wanted in zip(shape, (1, BANDS, FRAMES), strict=True)
    )
