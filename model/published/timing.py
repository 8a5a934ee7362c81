"""Steps and frames of a published model: what serving knows of it, from the window and shift of its features.

Window k holds the feature frames from k · shift on, and needs samples up to the end of its last frame. Frame i is 25 ms
long and centred at 10 ms · i + 5 ms; the first one is completed by the reflection of the audio at its start.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

HOP = 160  # samples between feature frames: 10 ms at 16 kHz
FRAME_SAMPLES = 400
BEFORE = 120  # samples of frame 0 that lie before the audio
TAIL_FRAMES = 21
"""Feature frames of silence behind the last one that are still decoded: 210 ms. It is what sherpa-onnx decodes with a
model of 45 frames a window when 0.66 s of silence follow the audio, as in its examples."""
RAW_TAIL = 480
"""The same for models that take samples: 60 ms at 8 kHz behind the audio, at least."""


@dataclass(frozen=True, slots=True)
class PublishedDescription:
    """Satisfies `model.description.ModelDescription`.

    `window` and `shift` count feature frames; a model that takes samples instead (`raw`) has one window a step.
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

    @property
    def step_samples(self) -> int:
        """Samples of one step, the shift."""
        return self.shift * self.hop

    @property
    def window_samples(self) -> int:
        """Samples that the first window needs."""
        return self.step_samples if self.raw else self.window * HOP + FRAME_SAMPLES - HOP - BEFORE

    @property
    def first_steps(self) -> int:
        """Steps until the first window is complete."""
        return math.ceil(self.window_samples / self.step_samples)

    @property
    def lead_samples(self) -> int:
        """Silence before a stream's audio, so that a step completes a window exactly."""
        return self.first_steps * self.step_samples - self.window_samples

    @property
    def delay_frames(self) -> int:
        """Output frames of the steps before the first window is complete."""
        return (self.first_steps - 1) * self.frames_per_step

    @property
    def doubts_steady_audio(self) -> bool:
        """False: the words are those of the model, token for token."""
        return False

    @property
    def flush_steps(self) -> int:
        """Most steps that a flush adds behind the last whole one, less one."""
        return math.ceil((self.window + TAIL_FRAMES) / self.shift)

    @property
    def latency_s(self) -> float:
        """Longest time from a sound to the end of the step that decodes it."""
        return self.window_samples / self.sample_rate

    def windows_of(self, samples: int) -> int:
        """Windows of a recording of so many samples: up to `TAIL_FRAMES` behind its last frame."""
        if self.raw:
            return max(1, (samples + self.step_samples - 1 + RAW_TAIL + 1) // self.step_samples)
        last = (samples + HOP // 2) // HOP - 1
        return 1 + max(0, last + TAIL_FRAMES) // self.shift

    def steps_of(self, samples: int) -> int:
        """Steps of a recording of so many samples; 1 at least."""
        return self.windows_of(samples) + self.first_steps - 1
