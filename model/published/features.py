"""Streaming feature windows for published models: samples in, one window of log-mel frames per step out.

The frames of all rows of a step are computed by one compiled call (`model.published.filter_bank`). A slot keeps the
samples and frames at the start of the next window. Frames before a stream's first are zeros; only the windows of
buffered models, which begin with frames of context on the left, contain them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.int8.vectors import LANES
from model.machine.compiled import entry_point
from model.published.filter_bank import Fbank, FilterBank, compute_frames, scale_whisper
from model.published.timing import BEFORE, FRAME_SAMPLES, HOP, PublishedDescription

Floats = NDArray[np.float32]
Indices = NDArray[np.int64]

KEPT = FRAME_SAMPLES - HOP  # samples that two consecutive frames share
LEAST_DEVIATION = 1e-5  # added to that of a band


class FbankWindows:
    """Feature windows (L, F) of the streams in `capacity` slots."""

    def __init__(self, options: Fbank, description: PublishedDescription, *, capacity: int) -> None:
        self._whisper, self._normalized, self._bins = options.whisper, options.normalized, options.bins
        self._window, self._shift = description.left + description.window, description.shift
        self._timing = np.array([description.lead_samples, description.first_steps], np.int64)
        self._steps = np.zeros(capacity, np.int64)  # number of steps so far, counted up to the first window
        self._tail = np.zeros((capacity, KEPT), np.int16)
        self._frames = np.zeros((capacity, self._window - self._shift, self._bins), np.float32)
        self._bank = FilterBank.of(options)
        self._addresses = self._bank.addresses
        self._audio = np.zeros((0, KEPT + description.step_samples), np.int16)
        self._starts = np.zeros(0, np.int64)  # addresses of the frames' samples
        self._new = np.zeros((0, self._bins), np.float32)  # frames of a step

    @property
    def state_bytes(self) -> int:
        """Size of a slot's state in bytes."""
        return sum(part[0].nbytes for part in self._parts)

    @property
    def _parts(self) -> tuple[NDArray[Any], ...]:
        return self._steps[:, np.newaxis], self._tail, self._frames

    def push(self, slots: Indices, pcm: NDArray[np.int16]) -> tuple[Indices, Floats]:
        """Add a step (B, S) of each slot's stream; return the rows with a window, and the windows (R, L, F)."""
        rows = len(slots)
        self._grow(rows)
        counts, ready = np.empty(rows, np.int64), np.empty(rows, np.int64)
        windows = np.empty((rows, self._window, self._bins), np.float32)
        parts = self._steps, self._tail
        total = add_samples(slots, np.ascontiguousarray(pcm), self._timing, parts, (self._audio, self._starts, counts))
        if total:
            compute_frames(self._starts, total, self._addresses, self._new)
        state = self._steps, self._frames
        found = add_frames(slots, int(self._timing[1]), state, (self._new, counts), (ready, windows))
        if self._whisper:
            scale_whisper(windows[:found])
        if self._normalized:
            normalize_bands(windows[:found])
        return ready[:found], windows[:found]

    def fill(self, rows: int) -> Floats:
        """Return windows (rows, L, F) of silence, for a warm-up."""
        return np.zeros((rows, self._window, self._bins), np.float32)

    def reset(self, slot: int) -> None:
        """Set the slot's state to that of a new stream."""
        for part in self._parts:
            part[slot] = 0

    def export(self, slot: int) -> bytes:
        """Return a copy of a slot's state."""
        return b"".join(part[slot].tobytes() for part in self._parts)

    def restore(self, slot: int, state: bytes) -> None:
        """Overwrite a slot's state."""
        at = 0
        for part in self._parts:
            size = part[slot].nbytes
            part[slot] = np.frombuffer(state[at : at + size], part.dtype).reshape(part[slot].shape)
            at += size

    def _grow(self, rows: int) -> None:
        """Make room for the samples and frames of a step of this many rows."""
        if rows > len(self._audio):
            frames = -(-rows * self._shift // LANES) * LANES
            self._audio = np.zeros((rows, self._audio.shape[1]), np.int16)
            self._starts, self._new = np.zeros(frames, np.int64), np.zeros((frames, self._bins), np.float32)


@entry_point
def add_samples(
    slots: Indices,
    pcm: NDArray[np.int16],
    timing: Indices,
    parts: tuple[Indices, NDArray[np.int16]],
    out: tuple[NDArray[np.int16], Indices, Indices],
) -> int:
    """Join a step (R, S) to the samples kept in each slot; return the number N of frames that it completes.

    `timing`: lead samples, and steps until the first window. `parts`: steps (capacity,) and tail (capacity, 240) of the
    slots; the tail is replaced. `out`: audio (R, 240 + S), addresses of the samples of each frame (N,), frames of each
    row (R,). The first frame of a stream starts with the reflection of the first samples.
    """
    steps, tail = parts
    audio, starts, counts = out
    total = 0
    for row in range(len(slots)):
        slot = slots[row]
        skipped, before = 0, KEPT
        if steps[slot]:
            for sample in range(KEPT):
                audio[row, sample] = tail[slot, sample]
        else:
            skipped, before = timing[0], BEFORE
            for sample in range(BEFORE):
                audio[row, sample] = pcm[row, skipped + BEFORE - 1 - sample]
        length = before + pcm.shape[1] - skipped
        for sample in range(skipped, pcm.shape[1]):
            audio[row, before + sample - skipped] = pcm[row, sample]
        for sample in range(KEPT):
            tail[slot, sample] = audio[row, length - KEPT + sample]
        counts[row] = max(0, (length - FRAME_SAMPLES) // HOP + 1)
        address = audio.ctypes.data + row * audio.shape[1] * 2
        for frame in range(counts[row]):
            starts[total] = address + frame * HOP * 2
            total += 1
    return total


@entry_point
def add_frames(
    slots: Indices,
    first_steps: int,
    state: tuple[Indices, Floats],
    new: tuple[Floats, Indices],
    out: tuple[Indices, Floats],
) -> int:
    """Join the new frames of each row to those kept in its slot; return the number N of complete windows.

    `state`: steps (capacity,) and frames (capacity, K, F) of the slots, both replaced. `new`: frames of all rows, and
    their number for each (R,). `out`: the rows with a window (N,), and the windows (N, L, F).
    """
    steps, kept = state
    frames, counts = new
    ready, windows = out
    found, first, last = 0, 0, kept.shape[1]
    for row in range(len(slots)):
        slot, count = slots[row], counts[row]
        if steps[slot] + 1 >= first_steps:
            old = windows.shape[1] - count  # frames of the window that are in the slot, its last ones
            for frame in range(windows.shape[1]):
                for band in range(kept.shape[2]):
                    if frame < old:
                        windows[found, frame, band] = kept[slot, last - old + frame, band]
                    else:
                        windows[found, frame, band] = frames[first + frame - old, band]
            ready[found] = row
            found += 1
        for frame in range(last):
            for band in range(kept.shape[2]):
                if frame + count < last:
                    kept[slot, frame, band] = kept[slot, frame + count, band]
                else:
                    kept[slot, frame, band] = frames[first + frame + count - last, band]
        steps[slot] = min(steps[slot] + 1, first_steps)
        first += count
    return found


@entry_point
def normalize_bands(windows: Floats) -> None:
    """Subtract each band's mean over its window and divide by its deviation plus 1e-5, in place; windows (R, L, F).

    Sums are in double precision and in the order of the frames, so that a row's bits depend on nothing else.
    Source: NeMo's `normalize_batch` with `per_feature`; the deviation is that of the frames, not of a sample of them.
    """
    count, bins = windows.shape[1:]
    for row in range(len(windows)):
        means, scales = np.zeros(bins, np.float64), np.zeros(bins, np.float64)
        for frame in range(count):
            for band in range(bins):
                means[band] += windows[row, frame, band]
        for band in range(bins):
            means[band] /= count
        for frame in range(count):
            for band in range(bins):
                difference = windows[row, frame, band] - means[band]
                scales[band] += difference * difference
        for band in range(bins):
            scales[band] = 1.0 / (math.sqrt(scales[band] / count) + LEAST_DEVIATION)
        for frame in range(count):
            for band in range(bins):
                windows[row, frame, band] = (windows[row, frame, band] - means[band]) * scales[band]


class RawWindows:
    """Windows of 16-bit samples instead of features, for T-one."""

    def __init__(self, description: PublishedDescription) -> None:
        self._samples = description.step_samples

    state_bytes = 0

    def push(self, slots: Indices, pcm: NDArray[np.int16]) -> tuple[Indices, NDArray[np.int32]]:
        """Add a step (B, S) of each slot's stream; return all rows, and the windows (B, S, 1)."""
        scaled = pcm.astype(np.float32) / np.float32(32_768) * np.float32(32_767)
        return np.arange(len(slots)), np.trunc(scaled).astype(np.int32)[:, :, np.newaxis]

    def fill(self, rows: int) -> NDArray[np.int32]:
        """Return windows (rows, S, 1) of silence, for a warm-up."""
        return np.zeros((rows, self._samples, 1), np.int32)

    def reset(self, slot: int) -> None:
        """Do nothing: windows do not overlap, so there is no state."""

    def export(self, slot: int) -> bytes:  # noqa: ARG002  part of the interface
        """Nothing."""
        return b""

    def restore(self, slot: int, state: bytes) -> None:
        """Do nothing."""


Windows = FbankWindows | RawWindows


def windows_of(description: PublishedDescription, options: Fbank | None, *, capacity: int) -> Windows:
    """Return the windows of the streams in `capacity` slots; without options the model takes samples."""
    return RawWindows(description) if options is None else FbankWindows(options, description, capacity=capacity)
