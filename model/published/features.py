"""Streaming feature windows for published models: samples in, one window of log-mel frames per step out.

kaldi-native-fbank computes the frames, as in sherpa-onnx, with the options of each kind's training. A slot keeps the
samples and frames at the start of the next window. One extractor serves all slots: each step is a separate stretch of
samples in it, and the frames between two stretches are dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.published.timing import BEFORE, FRAME_SAMPLES, HOP, PublishedDescription

Floats = NDArray[np.float32]
Indices = NDArray[np.int64]

SAMPLE_RATE = 16_000
BINS = 80
KEPT = FRAME_SAMPLES - HOP  # samples that two consecutive frames share
PREAMBLE = HOP - BEFORE  # samples before a stretch, so that it starts at the start of a frame
RENEW_FRAMES = 1 << 24  # an extractor counts its frames in 32 bits


@dataclass(frozen=True, slots=True)
class Fbank:
    """Options of the log-mel frames. `scale`: factor for samples in ±1."""

    window: str = "povey"
    low_hz: float = 20.0
    high_hz: float = -400.0  # negative: relative to the Nyquist frequency
    remove_dc: bool = True
    librosa: bool = False
    scale: float = 1.0
    whisper: bool = False

    def extractor(self) -> Any:
        """Return a kaldi-native-fbank object for samples at 16 kHz."""
        import kaldi_native_fbank as knf

        if self.whisper:
            whisper = knf.WhisperFeatureOptions()
            whisper.dim = BINS
            return knf.OnlineWhisperFbank(whisper)
        options = knf.FbankOptions()
        frames, mel = options.frame_opts, options.mel_opts
        frames.dither, frames.snip_edges, frames.samp_freq = 0.0, False, SAMPLE_RATE
        frames.remove_dc_offset, frames.window_type = self.remove_dc, self.window
        mel.num_bins, mel.low_freq, mel.high_freq, mel.is_librosa = BINS, self.low_hz, self.high_hz, self.librosa
        return knf.OnlineFbank(options)


KALDI = Fbank()
NEMO = Fbank(window="hann", low_hz=0.0, high_hz=8_000.0, remove_dc=False, librosa=True)
WENET = Fbank(scale=32_768.0)  # trained on integer samples
WHISPER = Fbank(whisper=True)


class FbankWindows:
    """Feature windows (L, 80) of the streams in `capacity` slots."""

    def __init__(self, options: Fbank, description: PublishedDescription, *, capacity: int) -> None:
        self._options = options
        self._lead, self._first_steps = description.lead_samples, description.first_steps
        self._window, self._shift = description.window, description.shift
        self._steps = np.zeros(capacity, np.int64)  # number of steps so far, counted up to the first window
        self._tail = np.zeros((capacity, KEPT), np.int16)
        self._frames = np.zeros((capacity, self._window - self._shift, BINS), np.float32)
        self._extractor = options.extractor()
        self._extracted = 0
        self._feed(np.zeros(PREAMBLE, np.float32))

    @property
    def state_bytes(self) -> int:
        """Size of a slot's state in bytes."""
        return sum(part[0].nbytes for part in self._parts)

    @property
    def _parts(self) -> tuple[NDArray[Any], ...]:
        return self._steps[:, np.newaxis], self._tail, self._frames

    def push(self, slots: Indices, pcm: NDArray[np.int16]) -> tuple[Indices, Floats]:
        """Add a step (B, S) of each slot's stream; return the rows with a window, and the windows (R, L, 80)."""
        windows = np.empty((len(slots), self._window, BINS), np.float32)
        ready: list[int] = []
        for row, slot in enumerate(slots.tolist()):
            steps = int(self._steps[slot])
            frames = self._frames_of(self._samples(slot, steps, pcm[row]))  # (M, 80)
            kept = self._window - self._shift
            known = np.concatenate([self._frames[slot], frames])
            if steps + 1 >= self._first_steps:
                windows[len(ready)] = known[-self._window :]
                ready.append(row)
            self._frames[slot] = known[len(known) - kept :]
            self._steps[slot] = min(steps + 1, self._first_steps)
        found = windows[: len(ready)]
        return np.array(ready, np.int64), _whisper(found) if self._options.whisper else found

    def fill(self, rows: int) -> Floats:
        """Return windows (rows, L, 80) of silence, for a warm-up."""
        return np.zeros((rows, self._window, BINS), np.float32)

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

    def _samples(self, slot: int, steps: int, step: NDArray[np.int16]) -> NDArray[np.int16]:
        """Return the samples of the frames completed by this step; samples of the next frame are kept."""
        if steps:
            samples = np.concatenate([self._tail[slot], step])
        else:  # the first frame starts with the reflection of the first samples
            audio = step[self._lead :]
            samples = np.concatenate([audio[:BEFORE][::-1], audio])
        self._tail[slot] = samples[-KEPT:]
        return samples

    def _frames_of(self, samples: NDArray[np.int16]) -> Floats:
        """Return the frames (M, 80) of a stretch of samples, from its first sample to its last."""
        count = (len(samples) - FRAME_SAMPLES) // HOP + 1
        if count < 1:
            return np.empty((0, BINS), np.float32)
        filled = -(-len(samples) // HOP) * HOP
        audio = np.zeros(filled, np.float32)
        np.multiply(samples, np.float32(self._options.scale / 32_768), out=audio[: len(samples)])
        first = self._extracted + 1  # frame 0 of the extractor starts before the end of the preamble
        self._feed(audio)
        frames = np.empty((count, BINS), np.float32)
        for number in range(count):
            frames[number] = self._extractor.get_frame(first + number)
        self._extracted += filled // HOP
        if self._extracted > RENEW_FRAMES:
            self._extractor, self._extracted = self._options.extractor(), 0
            self._feed(np.zeros(PREAMBLE, np.float32))
        else:
            self._extractor.pop(filled // HOP)
        return frames

    def _feed(self, audio: Floats) -> None:
        self._extractor.accept_waveform(SAMPLE_RATE, audio.tolist())  # a list is faster than an array here


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


def _whisper(windows: Floats) -> Floats:
    """Apply Whisper's scaling to each window (R, L, 80).

    Source: Radford et al. 2022; the floor is 8 below the maximum of the window, as in sherpa-onnx.
    """
    logs = np.log10(np.maximum(windows, 1e-10))
    highest = logs.max(axis=(1, 2), keepdims=True)
    return np.asarray((np.maximum(logs, highest - 8.0) + 4.0) / 4.0, np.float32)
