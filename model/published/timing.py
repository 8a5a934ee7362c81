"""Steps and frames of a published model for serving, computed from the window and shift of its features.

Window k holds the feature frames from k · shift on, and needs samples up to the end of its last frame. Frame i is 25 ms
long and centered at 10 ms · i + 5 ms; the first frame is completed by the reflection of the audio at its start.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

HOP = 160  # samples between feature frames: 10 ms at 16 kHz
FRAME_SAMPLES = 400
BEFORE = 120  # samples of frame 0 before the audio
TAIL_FRAMES = 21
"""Feature frames of silence after the last one that are still decoded: 210 ms. sherpa-onnx decodes as many with a model
of 45 frames per window when 0.66 s of silence follow the audio, as in its examples."""
RAW_TAIL = 480
"""The same for models that take samples: at least 60 ms at 8 kHz after the audio."""


@dataclass(frozen=True, slots=True)
class PublishedDescription:
    """Description of a published model; implements `model.description.ModelDescription`.

    `window` and `shift` count feature frames; a model that takes samples (`raw`) has one window per step.
    `left`: frames that the graph takes before a window, zeros before a stream's first frame; no step waits for them.
    """

    name: str
    version: str
    architecture: str
    languages: tuple[str, ...]
    sample_rate: int
    window: int
    shift: int
    frames_per_step: int
    frame_s: float
    hop: int = HOP
    raw: bool = False
    left: int = 0
    doubts_steady_audio: bool = False  # unless an operator asks for it: the words are those of the model

    @property
    def step_samples(self) -> int:
        """Number of samples of one step, the shift."""
        return self.shift * self.hop

    @property
    def window_samples(self) -> int:
        """Number of samples for the first window."""
        return self.step_samples if self.raw else self.window * HOP + FRAME_SAMPLES - HOP - BEFORE

    @property
    def first_steps(self) -> int:
        """Number of steps until the first window is complete."""
        return math.ceil(self.window_samples / self.step_samples)

    @property
    def lead_samples(self) -> int:
        """Samples of silence before a stream's audio, so that a window ends with a step."""
        return self.first_steps * self.step_samples - self.window_samples

    @property
    def delay_frames(self) -> int:
        """Output frames of the steps before the first window is complete."""
        return (self.first_steps - 1) * self.frames_per_step

    @property
    def least_confidence(self) -> float:
        """0: its words count with any confidence."""
        return 0.0

    @property
    def flush_steps(self) -> int:
        """Most steps that a flush adds after the last whole one, minus one."""
        return math.ceil((self.window + TAIL_FRAMES) / self.shift)

    @property
    def latency_s(self) -> float:
        """Longest time in seconds from a sound to the end of the step that decodes it."""
        return self.window_samples / self.sample_rate

    def windows_of(self, samples: int) -> int:
        """Number of windows of a recording of this many samples, up to `TAIL_FRAMES` after its last frame."""
        if self.raw:
            return max(1, (samples + self.step_samples - 1 + RAW_TAIL + 1) // self.step_samples)
        last = (samples + HOP // 2) // HOP - 1
        return 1 + max(0, last + TAIL_FRAMES) // self.shift

    def steps_of(self, samples: int) -> int:
        """Number of steps of a recording of this many samples, at least 1."""
        return self.windows_of(samples) + self.first_steps - 1
