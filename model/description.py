"""What a server needs to know of a model: sample rate, step, frames of a step, how a recording ends.

`ModelConfig` (our own network) and `model.published.timing` (published models) satisfy it by structure.
"""

from __future__ import annotations

from typing import Protocol


class ModelDescription(Protocol):
    """A streaming model as the server sees it: fixed steps of 16-bit samples in, frames of outputs out.

    Step n of a stream ends `lead_samples` before n · `step_samples`: a fresh stream's first step begins with as many
    samples of silence, which the model drops. So a model whose first window is longer than its step gets it exactly
    when its audio is there. The first `delay_frames` frames of a stream lie before its audio and mean nothing.
    """

    @property
    def name(self) -> str:
        """What clients call it."""

    @property
    def version(self) -> str:
        """Version of the weights, for people."""

    @property
    def architecture(self) -> str:
        """Its kind, e.g. `ctc-rnn` or `zipformer2-ctc`."""

    @property
    def languages(self) -> tuple[str, ...]:
        """BCP 47 tags of the languages that it recognizes; empty if not known."""

    @property
    def sample_rate(self) -> int:
        """Samples per second of its audio."""

    @property
    def step_samples(self) -> int:
        """Samples of one step."""

    @property
    def lead_samples(self) -> int:
        """Samples of silence at the start of a stream's first step, fewer than `step_samples`."""

    @property
    def frame_s(self) -> float:
        """Seconds that one output frame stands for."""

    @property
    def frames_per_step(self) -> int:
        """Output frames of one step."""

    @property
    def delay_frames(self) -> int:
        """Output frames at a stream's start that lie before its audio."""

    @property
    def doubts_steady_audio(self) -> bool:
        """Whether words in audio of one steady level are dropped: noise that was taken for speech."""

    @property
    def least_confidence(self) -> float:
        """Confidence that a word of a segment must reach, or none of its words counts: 0 to 1."""

    @property
    def flush_steps(self) -> int:
        """Most steps that a flush adds after the last whole one, minus one."""

    def steps_of(self, samples: int) -> int:
        """Steps of a recording of this many samples, with the silence that flushes its last words; at least 1."""
