"""Trains the network of voices: speakers as classes, and the encoder's vectors of the speakers as their first means.

`python -m tutti_asr_lab.training.speakers.train WHEEL OUT MANIFEST… --minutes 60` writes the 8-bit weights of
`model/weights/tutti-speakers.safetensors`. A speaker at another speed is another class. The shipped ones were made in
three runs with changes in between: model/weights/SPEAKERS.md. Each recording is used in wide
band and through a telephone line; filters, noise and rooms are added to the mel energies of each sample.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import soxr
import torch
from numpy.typing import NDArray
from safetensors.numpy import save
from torch import nn
from torch.nn import functional

from model.checkpoint import write_atomically
from model.mel import FLOOR, mel_filters
from model.speakers.slot_model import SAMPLE_RATE, Features
from model.speakers.step import BINS, SIZE
from tutti_asr_lab.training.acoustic.telephone import through_line
from tutti_asr_lab.training.speakers.conversations import part_of
from tutti_asr_lab.training.speakers.encoder import FRAMES, Encoder, power_frames
from tutti_asr_lab.training.speakers.network import VoiceNetwork, quantized_tensors

SPEEDS = (1.0, 0.88, 1.13)
BATCH, LENGTHS = 96, (70, 170)  # samples, and frames of 10 ms of each
RATE, WARM_UP = 2e-3, 100
SCALE, MARGIN = 20.0, 0.15  # of the cosines in the softmax. Source: Wang et al. 2018, additive margin
TAUGHT = 2.5  # weight of the distance from the encoder's vectors
BELOW_DB = 30.0
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Recording:
    """Log-mel frames with voice (T, BINS) of a recording."""

    speaker: tuple[str, float]
    frames: Floats


def voiced_frames(pcm: NDArray[np.int16]) -> Floats:
    """Return the log-mel frames of a recording that are at most `BELOW_DB` below the loud ones."""
    config, wave = Features(), pcm.astype(np.float32) / 32_768
    size, hop = config.window_samples, config.hop_samples
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)
    windows = np.lib.stride_tricks.sliding_window_view(wave, size)[::hop] * window
    energies = np.abs(np.fft.rfft(windows, config.fft_size, axis=1)) ** 2 @ mel_filters(config) + FLOOR
    power = (wave[: len(windows) * hop].reshape(-1, hop) ** 2).mean(axis=1)
    near = np.convolve(power, np.ones(13) / 13, "same")
    voiced = near > np.percentile(power, 95) * 10 ** (-BELOW_DB / 10)
    return np.asarray(np.log(energies[voiced]), np.float32)


def recordings_of(manifests: Sequence[Path]) -> tuple[list[Recording], dict[str, list[NDArray[np.int16]]]]:
    """Return the frames of all recordings, and the recordings of each speaker at their own speed."""
    recordings: list[Recording] = []
    plain: dict[str, list[NDArray[np.int16]]] = {}
    for manifest in manifests:
        for line in manifest.read_text().splitlines():
            row = json.loads(line)
            if part_of(row["source"], row["speaker"]) != "train":
                continue
            pcm, rate = soundfile.read(manifest.parent / row["audio"], dtype="int16")
            pcm = pcm if rate == SAMPLE_RATE else soxr.resample(pcm, rate, SAMPLE_RATE)
            plain.setdefault(row["speaker"], []).append(pcm)
            for speed in SPEEDS:
                wide = pcm if speed == 1 else soxr.resample(pcm, SAMPLE_RATE, round(SAMPLE_RATE / speed))
                line_wave = through_line(wide.astype(np.float32) / 32_768, SAMPLE_RATE, "mulaw", None)
                bands = [band for band in (wide, (line_wave * 32_767).astype(np.int16)) if len(band) >= SAMPLE_RATE]
                voiced = [voiced_frames(band) for band in bands]
                recordings += [
                    Recording((row["speaker"], speed), frames) for frames in voiced if len(frames) >= LENGTHS[0]
                ]
    return recordings, plain


def varied(frames: Floats, dice: np.random.Generator) -> Floats:
    """Return samples (B, T, BINS) with another level, microphone, telephone band, noise and room each."""
    hertz = 700 * (10 ** (np.linspace(*_mels(Features()), BINS + 2)[1:-1] / 2_595) - 1)
    waves = np.cos(np.outer(np.arange(BINS) + 0.5, np.arange(1, 5)) * np.pi / BINS)
    out = frames.copy()
    filters = 1.5 * dice.random((len(out), 1)) * dice.normal(size=(len(out), 4)) * (0.8, 0.6, 0.4, 0.3)
    out += (filters @ waves.T + dice.normal(0, 1.2, (len(out), 1))).astype(np.float32)[:, None]
    for x in out:
        if dice.random() < 0.45:
            cut = -np.clip((dice.uniform(100, 320) - hertz) / dice.uniform(25, 60), 0, dice.uniform(3, 9))
            cut -= np.clip((hertz - dice.uniform(3_200, 3_900)) / dice.uniform(30, 80), 0, 30) * (dice.random() < 0.7)
            floor = max(np.log(FLOOR), float(x.max()) - dice.uniform(9, 14))
            x[:] = np.logaddexp(x + cut, floor + dice.normal(0, 0.4, x.shape))
        if dice.random() < 0.35:
            color = waves @ dice.normal(0, 0.8, 4) - np.linspace(0, 1.5, BINS)
            level = np.log(np.exp(x).mean()) - dice.uniform(5, 25) * np.log(10) / 10
            x[:] = np.logaddexp(x, color + level + np.log(dice.gamma(3, 1 / 3, x.shape) + 1e-3))
    some = np.flatnonzero(dice.random(len(out)) < 0.35)
    wet, decay = dice.uniform(0.08, 1.0, (len(some), 1)), dice.uniform(0.7, 0.93, (len(some), 1))
    energies, tail = np.exp(out[some]), np.zeros((len(some), BINS))
    for frame in range(energies.shape[1]):
        dry = energies[:, frame].copy()
        energies[:, frame] += tail
        tail = tail * decay + dry * (1 - decay) * wet
    out[some] = np.log(energies)
    return out


def train(recordings: Sequence[Recording], taught: dict[str, Floats], minutes: float) -> dict[str, NDArray[Any]]:
    """Train the network; return the tensors of its 8-bit form. `taught`: the encoder's vector of each speaker."""
    dice, speakers = np.random.default_rng(0), sorted({recording.speaker for recording in recordings})
    by_speaker = [[one.frames for one in recordings if one.speaker == speaker] for speaker in speakers]
    every = np.concatenate([recording.frames[::37] for recording in recordings])
    mean, deviation = every.mean(axis=0), every.std(axis=0)
    center = np.mean(list(taught.values()), axis=0)
    known = torch.tensor([speed == 1 and name in taught for name, speed in speakers], dtype=torch.float32)
    starts = [
        taught[name] - center if speed == 1 and name in taught else dice.normal(size=SIZE) for name, speed in speakers
    ]
    targets = functional.normalize(torch.tensor(np.array(starts), dtype=torch.float32))
    network, means = VoiceNetwork(), nn.Parameter(targets.clone())
    optimizer = torch.optim.AdamW([*network.parameters(), means], lr=RATE, weight_decay=1e-4)
    began, step = time.monotonic(), 0
    while (done := (time.monotonic() - began) / (60 * minutes)) < 1:
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, step / WARM_UP) * (0.5 + 0.5 * float(np.cos(np.pi * done)))
        length, chosen = int(dice.integers(*LENGTHS)), dice.integers(len(speakers), size=BATCH)
        frames = np.stack([_piece(by_speaker[speaker], length, dice) for speaker in chosen])
        inputs = torch.from_numpy(((varied(frames, dice) - mean) / deviation).astype(np.float32))
        vectors, classes = network(inputs), torch.from_numpy(chosen)
        cosines = vectors @ functional.normalize(means).T
        loss = functional.cross_entropy(
            SCALE * (cosines - MARGIN * functional.one_hot(classes, len(speakers))), classes
        )
        apart = (1 - (vectors * targets[classes]).sum(1)) * known[classes]
        loss = loss + TAUGHT * apart.sum() / known[classes].sum().clamp(min=1)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 2.0)
        optimizer.step()
        step += 1
        if step % 100 == 0:
            sys.stdout.write(f"{step} steps, {done:.0%}, loss {loss.item():.3f}\n")
    chosen = dice.integers(len(speakers), size=256)
    sample = np.stack([_piece(by_speaker[speaker], 200, dice) for speaker in chosen])
    return quantized_tensors(network, mean, deviation, torch.from_numpy((sample - mean) / deviation))


def _piece(recordings: Sequence[Floats], length: int, dice: np.random.Generator) -> Floats:
    frames = recordings[int(dice.integers(len(recordings)))]
    frames = np.tile(frames, (length // len(frames) + 1, 1))
    first = int(dice.integers(0, len(frames) - length + 1))
    return frames[first : first + length]


def _mels(config: Features) -> tuple[float, float]:
    low, high = (2_595 * np.log10(1 + hertz / 700) for hertz in (config.mel_low_hz, config.mel_high_hz))
    return float(low), float(high)


def _taught(encoder: Encoder, recordings: Sequence[NDArray[np.int16]]) -> Floats | None:
    """Return the encoder's mean vector of a speaker's first recordings; None if they are shorter than a window."""
    windows = [frames[:FRAMES] for pcm in recordings[:8] if len(frames := power_frames(pcm)) >= FRAMES]
    return np.asarray(encoder.vectors(np.stack(windows)).mean(axis=0)) if windows else None


def main() -> None:
    """Train and write the weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("manifests", type=Path, nargs="+")
    parser.add_argument("--minutes", type=float, default=60.0)
    options = parser.parse_args()
    encoder = Encoder(options.wheel)
    recordings, plain = recordings_of(options.manifests)
    taught = {name: vector for name, said in plain.items() if (vector := _taught(encoder, said)) is not None}
    write_atomically(options.out, save(train(recordings, taught, options.minutes)))


if __name__ == "__main__":
    main()
