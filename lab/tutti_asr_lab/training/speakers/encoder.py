"""The speaker encoder of Resemblyzer 0.1.4, another project's network, in torch.

The wheel's license is the Apache License 2.0. Three LSTM layers of 256 over frames of 40 mel bands, without a
logarithm, of audio at -30 dB of full scale; a linear layer with ReLU; norm 1.
Source: Wan et al. 2018, https://arxiv.org/abs/1710.10467.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from model.audio.mel import slaney_filters, slaney_hz, slaney_mel
from model.speakers.slot_model import Features
from model.speakers.step import BANDS, HIDDEN, LAYERS, SIZE
from tutti_asr_lab.training.wheels import open_wheel

WHEEL = "Resemblyzer-0.1.4-py3-none-any.whl"
SHA256 = "8f12eb2f1a9982d32e8db7856de754709b59c93a77bcf0ff536584b619a9dd1f"
WEIGHTS = "resemblyzer/pretrained.pt"
POINTS = 400  # of its transform; ours has more, whose energies are as much larger

Floats = NDArray[np.float32]


class Encoder(nn.Module):
    """The encoder, with weights of chance."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.linear = nn.LSTM(BANDS, HIDDEN, LAYERS, batch_first=True), nn.Linear(HIDDEN, SIZE)

    @torch.no_grad()
    def vectors(self, frames: Floats) -> Floats:
        """Return the vectors (B, SIZE), norm 1, of frames (B, T, BANDS) of `energies`, at the level that it expects."""
        states, _ = self.lstm(torch.from_numpy(frames * band_factors()))
        vectors = nn.functional.normalize(torch.relu(self.linear(states[:, -1])))
        return np.asarray(vectors.numpy(), np.float32)


def load_encoder(wheel: Path) -> Encoder:
    """Return the encoder with the weights of the wheel. Raises: TrainingError for another file."""
    with open_wheel(wheel, WHEEL, SHA256) as files:
        weights = torch.load(io.BytesIO(files.read(WEIGHTS)), map_location="cpu", weights_only=True)["model_state"]
    encoder = Encoder()
    encoder.load_state_dict({name: weights[name] for name in encoder.state_dict()})
    return encoder.eval()


def energies(wave: Floats) -> Floats:
    """Return the mel energies of audio at 16 kHz in ±1, (T, BANDS), as the server computes them."""
    config = Features()
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(config.window_samples) / config.window_samples)
    windows = np.lib.stride_tricks.sliding_window_view(wave, config.window_samples)[:: config.hop_samples] * window
    return np.asarray(np.abs(np.fft.rfft(windows, config.fft_size, axis=1)) ** 2 @ slaney_filters(config), np.float32)


def band_factors() -> Floats:
    """Return what makes the encoder's energies of ours, (BANDS,): its filters have equal areas, ours peaks of 1."""
    config = Features()
    mels = np.linspace(slaney_mel(config.mel_low_hz), slaney_mel(config.mel_high_hz), BANDS + 2)
    hertz = np.array([slaney_hz(mel) for mel in mels.tolist()])
    return np.asarray(2 / (hertz[2:] - hertz[:-2]) * POINTS / config.fft_size, np.float32)
