"""Augmentation of training recordings: speed, room, noise, telephone, level, masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import numpy as np
import torch
from msgspec import Meta
from numpy.typing import NDArray
from torch import Tensor

from tutti_asr_lab.training.acoustic.telephone import LAWS, through_line

Samples = NDArray[np.float32]
AtLeast0 = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]


@dataclass(frozen=True, slots=True)
class Augmentation:
    """Strengths of augmentations: probabilities unless named with a unit. Chosen by ear and on `dev` (model card)."""

    speed: Share = 0.6
    speed_range: Annotated[float, Meta(ge=0, lt=1)] = 0.15  # factors 0.85 to 1.15 (Ko et al. 2015 use 0.9 to 1.1)
    room: Share = 0.1
    noise: Share = 0.4
    noise_snr_db: tuple[float, float] = (3.0, 30.0)
    telephone: Share = 0.15
    telephone_band: Share = 0.5  # of the telephone lines; the others carry all of 0 to 4 kHz
    telephone_low_hz: tuple[AtLeast0, AtLeast0] = (50.0, 300.0)  # edges of the band
    telephone_high_hz: tuple[AtLeast0, AtLeast0] = (3_400.0, 3_900.0)
    gain_db: tuple[float, float] = (-20.0, 4.0)
    lead_s: AtLeast0 = 0.4  # most silence before the speech
    frequency_masks: Count = 2
    frequency_mask_bins: Count = 15
    time_masks: Count = 2
    time_mask_share: Share = 0.06  # of the utterance, at most, for each mask

    def __post_init__(self) -> None:
        """Raises: ValueError for a range that is not in order."""
        for name, value in asdict(self).items():
            if isinstance(value, tuple) and value[0] > value[1]:
                raise ValueError(f"{name} {value[0]:g}, {value[1]:g}: the first must not exceed the second")


@dataclass(frozen=True, slots=True)
class Timing:
    """Part of an augmentation that determines the length of its result: speed factor, seconds of silence in front."""

    speed: float = 1.0
    lead_s: float = 0.0

    @classmethod
    def drawn(cls, recipe: Augmentation, rng: np.random.Generator) -> Timing:
        """Draw a timing."""
        changed = rng.random() < recipe.speed
        speed = float(rng.uniform(1 - recipe.speed_range, 1 + recipe.speed_range)) if changed else 1.0
        return cls(speed, float(rng.uniform(0, recipe.lead_s)))

    def seconds(self, before_s: float) -> float:
        """Length of the result for audio of `before_s`."""
        return self.lead_s + before_s / self.speed

    def __call__(self, pcm: Samples, sample_rate: int) -> Samples:
        """Apply the timing, (S,) -> (S',)."""
        played = pcm if self.speed == 1.0 else change_speed(pcm, self.speed)
        return np.concatenate([np.zeros(int(self.lead_s * sample_rate), np.float32), played])


AS_RECORDED = Timing()


def change_speed(pcm: Samples, factor: float) -> Samples:
    """Play faster (factor > 1) or slower, including the pitch, by linear interpolation."""
    positions = np.arange(0, len(pcm) - 1, factor, dtype=np.float32)
    return np.asarray(np.interp(positions, np.arange(len(pcm), dtype=np.float32), pcm), np.float32)


def add_noise(pcm: Samples, noise: Samples, snr_db: float) -> Samples:
    """Mix in noise of the same length at a signal-to-noise ratio."""
    power, noise_power = float(np.mean(pcm**2)), float(np.mean(noise**2))
    if power <= 0 or noise_power <= 0:
        return pcm
    return pcm + noise * np.float32(np.sqrt(power / noise_power / 10 ** (snr_db / 10)))


def add_room(pcm: Samples, response: Samples) -> Samples:
    """Convolve with a room impulse response, keeping length and energy."""
    size = 1 << (len(pcm) + len(response) - 1).bit_length()
    wet = np.fft.irfft(np.fft.rfft(pcm, size) * np.fft.rfft(response, size), size)[: len(pcm)]
    scale = np.sqrt(np.sum(pcm**2) / max(float(np.sum(wet**2)), 1e-12))
    return np.asarray(wet * scale, np.float32)


class Augmenter:
    """Draws and applies augmentations; owns the noise recordings and room responses."""

    def __init__(
        self, recipe: Augmentation, noises: Sequence[Samples], rooms: Sequence[Samples], sample_rate: int
    ) -> None:
        self.recipe, self.noises, self.rooms, self.sample_rate = recipe, list(noises), list(rooms), sample_rate

    def __call__(self, pcm: Samples, rng: np.random.Generator) -> Samples:
        """Augment one recording, float PCM in [-1, 1], (S,) -> (S',)."""
        return self.transmit(self.record(Timing.drawn(self.recipe, rng)(pcm, self.sample_rate), rng), rng)

    def record(self, pcm: Samples, rng: np.random.Generator) -> Samples:
        """Apply what a microphone adds: room, noise, level, hiss, (S,) -> (S,)."""
        r = self.recipe
        if self.rooms and rng.random() < r.room:
            pcm = add_room(pcm, self.rooms[rng.integers(len(self.rooms))])
        if self.noises and rng.random() < r.noise:
            pcm = add_noise(pcm, self._noise(len(pcm), rng), float(rng.uniform(*r.noise_snr_db)))
        pcm = pcm * np.float32(10 ** (rng.uniform(*r.gain_db) / 20))
        hiss = np.float32(10 ** (rng.uniform(-100, -55) / 20))
        return np.clip(pcm + hiss * rng.standard_normal(len(pcm), dtype=np.float32), -1, 1)

    def transmit(self, pcm: Samples, rng: np.random.Generator) -> Samples:
        """Pass a share of the recordings through a telephone line, (S,) -> (S,)."""
        r = self.recipe
        if not len(pcm) or rng.random() >= r.telephone:
            return pcm
        law = LAWS[int(rng.integers(len(LAWS)))]
        band = (float(rng.uniform(*r.telephone_low_hz)), float(rng.uniform(*r.telephone_high_hz)))
        filtered = rng.random() < r.telephone_band
        return np.clip(through_line(pcm, self.sample_rate, law, band if filtered else None), -1, 1)

    def _noise(self, length: int, rng: np.random.Generator) -> Samples:
        noise = self.noises[rng.integers(len(self.noises))]
        start = int(rng.integers(max(len(noise) - length, 0) + 1))
        return np.resize(noise[start : start + length], length)


def mask(features: Tensor, lengths: Sequence[int], recipe: Augmentation, rng: np.random.Generator) -> Tensor:
    """Mask frequency bands and time spans of normalized features (B, T, F), in place. Source: Park et al. 2019."""
    bins = features.shape[2]
    for row, length in enumerate(lengths):
        for _ in range(recipe.frequency_masks):
            width = int(rng.integers(recipe.frequency_mask_bins + 1))
            start = int(rng.integers(bins - width + 1))
            features[row, :, start : start + width] = 0
        for _ in range(recipe.time_masks):
            width = int(rng.integers(int(length * recipe.time_mask_share) + 1))
            start = int(rng.integers(max(length - width, 0) + 1))
            features[row, start : start + width] = 0
    return features


def to_tensor(pcm: Samples) -> Tensor:
    """Convert float PCM to int16, as a client sends it."""
    return torch.from_numpy((pcm * 32767).astype(np.int16))
