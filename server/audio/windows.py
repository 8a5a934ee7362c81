"""Windows of auxiliary models, which are shorter than a step, and the rows that carry several of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from server.audio.pcm import PCM


class WindowRows:
    """Cuts audio into rows of whole windows.

    A row of a model that takes several windows has `together` of them, zeros after the last one, then their number.
    """

    def __init__(self, samples: int, together: int) -> None:
        """`samples`: of a window; `together`: most windows of a row."""
        self._samples, self._together = samples, together
        self.rest = np.zeros(0, np.int16)  # after the last whole window
        self.end = 0  # samples in whole windows

    def cut(self, pcm: PCM) -> Iterator[tuple[PCM, int]]:
        """Take (S,) int16; yield the rows that it completes and their numbers of windows; `end` is at the row's end."""
        pcm = np.concatenate((self.rest, pcm))
        whole = len(pcm) // self._samples
        self.rest = pcm[whole * self._samples :]
        for first in range(0, whole, self._together):
            count = min(self._together, whole - first)
            windows = pcm[first * self._samples : (first + count) * self._samples]
            self.end += len(windows)
            yield (windows if self._together == 1 else self._row(windows, count)), count

    def _row(self, windows: PCM, count: int) -> PCM:
        row = np.zeros(self._together * self._samples + 1, np.int16)
        row[: len(windows)], row[-1] = windows, count
        return row
