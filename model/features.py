"""Log-mel features from raw PCM, computed inside the step: no window ever waits outside of the stream's state."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from model.config import ModelConfig

FLOOR = 1e-6  # mel energy of about -90 dBFS white noise: quieter than any microphone, so digital silence is no outlier


def _hz_to_mel(hz: Tensor) -> Tensor:
    """Mel scale of O'Shaughnessy (1987), as HTK has it."""
    return 2595.0 * torch.log10(1.0 + hz / 700.0)


def mel_filters(config: ModelConfig) -> Tensor:
    """Triangular filters, (fft_size // 2 + 1, F) float32, equally spaced on the mel scale, peak 1."""
    bins = config.fft_size // 2 + 1
    mel = _hz_to_mel(torch.linspace(0, config.sample_rate / 2, bins, dtype=torch.float64))
    low, high = _hz_to_mel(torch.tensor([config.mel_low_hz, config.mel_high_hz], dtype=torch.float64)).tolist()
    edges = torch.linspace(low, high, config.mel_bins + 2, dtype=torch.float64)
    width = edges[1] - edges[0]
    rising = (mel[:, None] - edges[None, :-2]) / width
    falling = (edges[None, 2:] - mel[:, None]) / width
    return torch.minimum(rising, falling).clamp_min(0).to(torch.float32)


class LogMel(nn.Module):
    """PCM (B, S) with its overlap (B, window - hop) to normalised log-mel frames (B, S / hop, F) float32."""

    window: Tensor
    filters: Tensor
    mean: Tensor
    scale: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.hop, self.length, self.fft_size = config.hop_samples, config.window_samples, config.fft_size
        self.overlap = config.window_samples - config.hop_samples
        self.register_buffer("window", torch.hann_window(config.window_samples), persistent=False)
        self.register_buffer("filters", mel_filters(config), persistent=False)
        self.register_buffer("mean", torch.zeros(config.mel_bins))  # of the training set, stored with the weights
        self.register_buffer("scale", torch.ones(config.mel_bins))

    def log_mel(self, pcm: Tensor) -> Tensor:
        """Float PCM in [-1, 1], (B, overlap + n * hop), to log-mel energies (B, n, F), not normalised."""
        frames = pcm.unfold(-1, self.length, self.hop) * self.window  # (B, n, window)
        spectrum = torch.fft.rfft(frames, self.fft_size)  # (B, n, fft / 2 + 1) complex
        power = spectrum.real.square() + spectrum.imag.square()
        return torch.log(power @ self.filters + FLOOR)  # (B, n, F)

    def forward(self, pcm: Tensor, overlap: Tensor) -> tuple[Tensor, Tensor]:
        """int16 PCM (B, S) and the samples before it (B, overlap) int16 -> frames (B, S / hop, F), new overlap."""
        joined = torch.cat([overlap, pcm], dim=1)  # (B, overlap + S) int16
        features = (self.log_mel(joined.to(torch.float32) * (1 / 32768)) - self.mean) * self.scale
        return features, joined[:, -self.overlap :]
