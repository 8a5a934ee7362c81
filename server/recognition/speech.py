"""Voice activity of one channel, followed along the audio: when speech began, and how long silence has lasted.

Probabilities may arrive in advance of the recognised steps; they count only up to the audio that the step covers, so a
decision depends on the audio alone and never on timing.
"""

from __future__ import annotations

from collections import deque

# Source: silero-vad's own iterator: speech begins above the threshold and ends 0.15 below it.
SPEECH_ABOVE = 0.5
SILENCE_BELOW = 0.35


class SpeechTrack:
    """Speech and silence as a function of audio time."""

    def __init__(self, window_samples: int, sample_rate: int) -> None:
        self._window_samples = window_samples
        self._window_s = window_samples / sample_rate
        self._ahead: deque[tuple[int, float]] = deque()  # (end sample, probability), not yet counted
        self._heard = 0  # samples whose probability is known
        self.speaking = False
        self._silent_windows = 0

    @property
    def silence_s(self) -> float:
        """How long silence has lasted at the sample followed to."""
        return self._silent_windows * self._window_s

    def heard(self, end_sample: int, probability: float) -> None:
        """Take the answer for the window that ends there."""
        self._ahead.append((end_sample, probability))
        self._heard = end_sample

    def covers(self, end_sample: int) -> bool:
        """Return whether every whole window up to this sample was heard."""
        return end_sample - self._heard < self._window_samples

    def follow(self, end_sample: int) -> float | None:
        """Count the windows up to this sample; return how many seconds before it speech began, None if it did not."""
        began: float | None = None
        while self._ahead and self._ahead[0][0] <= end_sample:
            end, probability = self._ahead.popleft()
            self._silent_windows = self._silent_windows + 1 if probability < SILENCE_BELOW else 0
            if probability > SPEECH_ABOVE and not self.speaking:
                self.speaking = True
                began = (end_sample - end + self._window_samples) / self._window_samples * self._window_s
        return began

    def quiet(self) -> None:
        """Speech is over: the next window above the threshold begins new speech."""
        self.speaking = False
