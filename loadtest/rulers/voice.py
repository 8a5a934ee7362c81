"""Ends of speech by silero, as pipecat and LiveKit determine them, computed before a load is played.

Source: pipecat-ai 1.14.0, `pipecat.audio.vad`, to which tests/ecosystem/agents/test_pipecat.py compares it; BS.1770-4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from loadtest.rulers.playing import PIECE_SAMPLES
from model.vad.silero import SileroVad
from model.vad.step import WINDOW

STOP_S = 0.2  # `VADParams.stop_secs`
CONFIDENCE, MIN_VOLUME = 0.7, 0.6  # a window is speech from both on
VOLUME_S, SMOOTHING = 0.4, 0.2
QUIETEST_LUFS, LOUDEST_LUFS, GATE_LUFS = -110.0, -10.0, -70.0
RESET_S, RESET_BELOW, RESET_WINDOWS = 2.0, 0.1, 5  # the network's state is reset in clear silence

SPEECH_ABOVE, SILENCE_BELOW = 0.5, 0.35  # Source: silero-vad's iterator, and LiveKit's defaults

# K weighting as two biquads of which only the analog prototypes are rate independent: (gain dB, Q, corner Hz).
SHELF = (3.999843853973347, 0.7071752369554196, 1_681.974450955533)
HIGH_PASS_Q, HIGH_PASS_HZ = 0.5003270373238773, 38.13547087602444
RESPONSE = 8_192  # samples of the filters' impulse response, after which it is below 1e-12

Samples = NDArray[np.int16]
Floats = NDArray[np.float64]


class Voice:
    """Silero on whole recordings, one at a time."""

    def __init__(self, vad: SileroVad | None = None) -> None:
        vad = SileroVad.load() if vad is None else vad
        self.window, self.rate = WINDOW, vad.sample_rate
        self._slots = vad.slots(capacity=1, largest=1)

    def stops(self, samples: Samples) -> tuple[int, ...]:
        """Return the pieces of 20 ms of (S,) int16 audio at whose arrival pipecat reports that speech stopped."""
        needed = round(STOP_S * self.rate / self.window)  # as many windows start speech
        loudness = _Loudness(samples, self.rate)
        state, count, smoothed, pieces = _State.QUIET, 0, 0.0, []
        since_reset = low = 0
        self._slots.reset(0)
        for number in range(len(samples) // self.window):
            end = (number + 1) * self.window
            confidence = self._probability(samples[end - self.window : end])
            since_reset, low = since_reset + 1, low + 1 if confidence < RESET_BELOW else 0
            if since_reset * self.window >= RESET_S * self.rate and state is _State.QUIET and low >= RESET_WINDOWS:
                self._slots.reset(0)
                since_reset = 0
            smoothed += SMOOTHING * (loudness.volume(end) - smoothed)
            state, count = _next(state, count, speaking=confidence >= CONFIDENCE and smoothed >= MIN_VOLUME)
            if state is _State.STARTING and count >= needed:
                state = _State.SPEAKING
            elif state is _State.STOPPING and count >= needed:
                state = _State.QUIET
                pieces.append(math.ceil(end / PIECE_SAMPLES) - 1)
        return tuple(pieces)

    def end_s(self, samples: Samples) -> float | None:
        """Return where the last speech of (S,) int16 audio ends, seconds; None if there is none."""
        self._slots.reset(0)
        speaking, end_s = False, None
        for end in range(self.window, len(samples) + 1, self.window):
            probability = self._probability(samples[end - self.window : end])
            speaking = probability >= SPEECH_ABOVE or (speaking and probability >= SILENCE_BELOW)
            end_s = end / self.rate if speaking else end_s
        return end_s

    def _probability(self, window: Samples) -> float:
        self._slots.inputs[0, :WINDOW], self._slots.inputs[0, -1] = window, 1
        return float(self._slots.run([0])[0, 0])


class _State:
    QUIET, STARTING, SPEAKING, STOPPING = range(4)


def _next(state: int, count: int, *, speaking: bool) -> tuple[int, int]:
    """Return the state after a window, and its windows so far."""
    if speaking:
        if state == _State.QUIET:
            return _State.STARTING, 1
        return (_State.STARTING, count + 1) if state == _State.STARTING else (_State.SPEAKING, 0)
    if state == _State.SPEAKING:
        return _State.STOPPING, 1
    return (_State.STOPPING, count + 1) if state == _State.STOPPING else (_State.QUIET, 0)


class _Loudness:
    """Loudness of the last 400 ms at any place of a recording, from 0 to 1."""

    def __init__(self, samples: Samples, rate: int) -> None:
        self._width = math.ceil(VOLUME_S * rate)
        weighted = _filtered(samples / 32_768, _impulse_response(rate))
        self._energy = np.concatenate([[0.0], np.cumsum(np.square(weighted))])

    def volume(self, end: int) -> float:
        """Return the volume of the window that ends at this sample; 0 until it is full."""
        if end < self._width:
            return 0.0
        mean = float(self._energy[end] - self._energy[end - self._width]) / self._width
        lufs = -0.691 + 10 * math.log10(mean) if mean > 0 else -math.inf
        if lufs < GATE_LUFS:
            return 0.0
        return min(1.0, max(0.0, (lufs - QUIETEST_LUFS) / (LOUDEST_LUFS - QUIETEST_LUFS)))


def _filtered(samples: Floats, response: Floats) -> Floats:
    size = 1 << (len(samples) + len(response) - 1).bit_length()
    product = np.fft.rfft(samples, size) * np.fft.rfft(response, size)
    return np.fft.irfft(product, size)[: len(samples)]


def _impulse_response(rate: int) -> Floats:
    """Return the response of K weighting. Source: BS.1770-4 for 48 kHz, by its analog prototypes for other rates."""
    gain_db, shelf_q, shelf_hz = SHELF
    k, high = math.tan(math.pi * shelf_hz / rate), 10 ** (gain_db / 20)
    band = high**0.4996667741545416
    a0 = 1 + k / shelf_q + k * k
    shelf = [high + band * k / shelf_q + k * k, 2 * (k * k - high), high - band * k / shelf_q + k * k]
    impulse = np.concatenate([[1.0], np.zeros(RESPONSE - 1)])
    response = _biquad(impulse, [b / a0 for b in shelf], [2 * (k * k - 1) / a0, (1 - k / shelf_q + k * k) / a0])
    k = math.tan(math.pi * HIGH_PASS_HZ / rate)
    a0 = 1 + k / HIGH_PASS_Q + k * k
    return _biquad(response, [1.0, -2.0, 1.0], [2 * (k * k - 1) / a0, (1 - k / HIGH_PASS_Q + k * k) / a0])


def _biquad(samples: Floats, b: Sequence[float], a: Sequence[float]) -> Floats:
    out = np.zeros(len(samples))
    x1 = x2 = y1 = y2 = 0.0
    for number, x in enumerate(samples):
        y = b[0] * x + b[1] * x1 + b[2] * x2 - a[0] * y1 - a[1] * y2
        out[number], x2, x1, y2, y1 = y, x1, x, y1, y
    return out
