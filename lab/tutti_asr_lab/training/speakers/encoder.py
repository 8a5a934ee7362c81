"""The speaker encoder of Resemblyzer 0.1.4, another project's network, as a teacher of the network of voices.

The wheel's license is the Apache License 2.0. Three LSTM layers of 256 over 160 frames of 40 mel bands, without a
logarithm, of audio at -30 dB of full scale; a linear layer with ReLU; norm 1.
Source: Wan et al. 2018, https://arxiv.org/abs/1710.10467.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from model.errors import TrainingError
from model.mel import slaney_hz, slaney_mel

WHEEL = "Resemblyzer-0.1.4-py3-none-any.whl"
SHA256 = "8f12eb2f1a9982d32e8db7856de754709b59c93a77bcf0ff536584b619a9dd1f"
WEIGHTS = "resemblyzer/pretrained.pt"
FRAMES, BANDS, HIDDEN = 160, 40, 256
WINDOW, HOP, POINTS = 400, 160, 400
LEVEL_DB = -30.0
RATE = 16_000

Floats = NDArray[np.float32]


class Encoder(nn.Module):
    """The encoder with the weights of the wheel."""

    def __init__(self, wheel: Path) -> None:
        """Raises: TrainingError for another file."""
        super().__init__()
        try:
            blob = wheel.read_bytes()
        except OSError as error:
            raise TrainingError(
                f"cannot read {wheel}: {error.strerror}; `pip download Resemblyzer==0.1.4 --no-deps`"
            ) from error
        digest = hashlib.sha256(blob).hexdigest()
        if digest != SHA256:
            raise TrainingError(f"{wheel} is not {WHEEL}: its SHA-256 is {digest}, not {SHA256}")
        with zipfile.ZipFile(io.BytesIO(blob)) as files:
            weights = torch.load(io.BytesIO(files.read(WEIGHTS)), map_location="cpu", weights_only=True)["model_state"]
        self.lstm = nn.LSTM(BANDS, HIDDEN, 3, batch_first=True)
        self.linear = nn.Linear(HIDDEN, HIDDEN)
        self.load_state_dict(
            {name: tensor for name, tensor in weights.items() if name.startswith(("lstm.", "linear."))}
        )
        self.eval()

    @torch.no_grad()
    def vectors(self, frames: Floats) -> Floats:
        """Return the vectors (B, HIDDEN), norm 1, of frames (B, FRAMES, BANDS) of `power_frames`."""
        states, _ = self.lstm(torch.from_numpy(frames))
        vectors = nn.functional.normalize(torch.relu(self.linear(states[:, -1])))
        return np.asarray(vectors.numpy(), np.float32)


def power_frames(pcm: NDArray[np.int16]) -> Floats:
    """Return the mel energies of a recording at 16 kHz, (T, BANDS), at the level that the encoder expects."""
    wave = pcm.astype(np.float32) / 32_768
    wave *= 10 ** (LEVEL_DB / 20) / max(float(np.sqrt(np.mean(wave * wave))), 1e-5)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)
    windows = np.lib.stride_tricks.sliding_window_view(wave, WINDOW)[::HOP] * window
    return np.asarray(np.abs(np.fft.rfft(windows, POINTS, axis=1)) ** 2 @ _filters().T, np.float32)


def _filters() -> NDArray[np.float64]:
    """Return triangles of equal area, (BANDS, POINTS / 2 + 1), equally spaced on Slaney's scale, as librosa's."""
    hertz = np.arange(POINTS // 2 + 1) * RATE / POINTS
    edges = np.array([slaney_hz(mel) for mel in np.linspace(slaney_mel(0.0), slaney_mel(RATE / 2), BANDS + 2)])
    low, middle, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    heights = np.minimum((hertz - low) / (middle - low), (high - hertz) / (high - middle)).clip(min=0)
    return np.asarray(heights * (2 / (high - low)))
