"""Conversations mixed from recordings of single speakers, with who speaks when and the words of each.

Turns of 1 to 8 s are cut at quiet places and follow one another after a pause or an overlap. All voices of a
conversation pass through one room, one microphone's filter and one noise, and, if asked, through a telephone line.
A word is a stretch of about a third of a second of a turn's voice: the recordings have no times of words.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tutti_asr_lab.training.acoustic.telephone import through_line

RATE = 16_000
FRAME = 320  # samples of 20 ms, in which loudness is measured
WORD_S = 0.32
SHORTEST_S, LONGEST_S = 1.0, 8.0
PAUSES_S = (0.1, 0.8)  # between turns without overlap
LEVEL_DB, SPREAD_DB = -26.0, 3.0  # of a voice: mean and deviation, of full scale
BELOW_DB = 30.0  # a frame this far below the loud ones is no voice

PCM = NDArray[np.int16]
Wave = NDArray[np.float32]
Band = Literal["wide", "mulaw"]
Part = Literal["train", "tune", "report"]
SHARES = {"": (78, 89), "librispeech_devclean_mp3": (47, 67), "dev": (0, 0)}
"""By source, the percentages of the speakers that are trained on, and those that are trained on or set thresholds."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """A stretch of voice, in seconds of the conversation."""

    start_s: float
    end_s: float
    speaker: int


@dataclass(frozen=True, slots=True)
class Conversation:
    """Mixed audio at 16 kHz, the turns of its voices, and their words."""

    pcm: PCM
    turns: tuple[Spoken, ...]
    words: tuple[Spoken, ...]


def mix(
    voices: Sequence[Sequence[PCM]], dice: np.random.Generator, *, turns: int, overlap: float, band: Band
) -> Conversation:
    """Mix a conversation of `turns` turns; `voices`: recordings of each; `overlap`: share of turns that begin early.

    The first turns are one of each voice. A voice does not follow itself, unless it is alone.
    """
    gains = [10 ** ((LEVEL_DB + SPREAD_DB * dice.normal()) / 20) for _ in voices]
    length, placed, last = 0.3, [], -1
    waves: list[tuple[int, Wave]] = []
    for turn in range(turns):
        others = [voice for voice in range(len(voices)) if voice != last] or [0]
        speaker = turn if turn < len(voices) else int(dice.choice(others))
        wave, voiced = _turn(voices[speaker], dice)
        wave = wave * (gains[speaker] / max(float(np.sqrt(np.mean(wave[_spread(voiced, len(wave))] ** 2))), 1e-4))
        early = turn > 0 and len(voices) > 1 and dice.random() < overlap
        start = length - dice.uniform(0.3, 1.0) if early else length + dice.uniform(*PAUSES_S) * (turn > 0)
        start = max(start, 0.0)
        waves.append((round(start * RATE), wave))
        placed += [Spoken(start + a, start + b, speaker) for a, b in _stretches(voiced)]
        length, last = max(length, start + len(wave) / RATE), speaker
    mixed = np.zeros(round((length + 1.0) * RATE), np.float32)
    for at, wave in waves:
        mixed[at : at + len(wave)] += wave
    mixed = _in_room(mixed, dice)
    if band == "mulaw":
        mixed = through_line(mixed, RATE, "mulaw", (200.0, 3_600.0))
    pcm = (np.clip(mixed, -1, 1) * 32_767).astype(np.int16)
    words = [word for turn in placed for word in _words(turn)]
    return Conversation(pcm, tuple(_joined(placed)), tuple(words))


def part_of(source: str, speaker: str) -> Part:
    """Return whether a speaker is trained on, sets thresholds, or is one of the figures'; by the hash of its name."""
    train, tune = SHARES.get(source, SHARES[""])
    share = zlib.crc32(speaker.encode()) % 100
    return "train" if share < train else "tune" if share < tune else "report"


def voices_of(recordings: Mapping[str, Sequence[PCM]], dice: np.random.Generator, count: int) -> list[Sequence[PCM]]:
    """Choose the recordings of `count` different speakers."""
    names = sorted(recordings)
    return [recordings[names[index]] for index in dice.choice(len(names), count, replace=False)]


def _turn(recordings: Sequence[PCM], dice: np.random.Generator) -> tuple[Wave, NDArray[np.bool_]]:
    """Cut a turn from a random recording; return it, and which of its frames have voice."""
    for _ in range(50):
        pcm = recordings[int(dice.integers(len(recordings)))]
        frames = len(pcm) // FRAME
        wanted = round(dice.uniform(SHORTEST_S, LONGEST_S) * RATE / FRAME)
        if frames < SHORTEST_S * RATE / FRAME:
            continue
        wave = pcm[: frames * FRAME].astype(np.float32) / 32_768
        power = np.convolve((wave.reshape(frames, FRAME) ** 2).mean(axis=1), np.ones(5) / 5, "same")
        voiced = power > np.percentile(power, 90) * 10 ** (-BELOW_DB / 10)
        begin = int(dice.integers(0, max(1, frames - wanted)))
        begin, end = _quiet(power, begin), _quiet(power, min(begin + wanted, frames))
        if voiced[begin:end].sum() >= 0.7 * SHORTEST_S * RATE / FRAME:
            used = np.flatnonzero(voiced[begin:end])
            begin, end = begin + int(used[0]), begin + int(used[-1]) + 1
            return wave[begin * FRAME : end * FRAME].astype(np.float32), np.asarray(voiced[begin:end], np.bool_)
    raise ValueError("no recording of this speaker has a second of voice")


def _quiet(power: NDArray[np.float32], frame: int, around: int = 20) -> int:
    """Return the quietest frame within 0.4 s; the ends of a recording stay."""
    if frame <= around or frame >= len(power) - around:
        return 0 if frame <= around else len(power)
    return frame - around + int(power[frame - around : frame + around].argmin())


def _spread(voiced: NDArray[np.bool_], samples: int) -> NDArray[np.bool_]:
    return np.repeat(voiced, FRAME)[:samples]


def _stretches(voiced: NDArray[np.bool_]) -> list[tuple[float, float]]:
    """Return the stretches of voice in seconds; pauses below 0.2 s do not part them."""
    used = np.flatnonzero(voiced)
    breaks = np.flatnonzero(np.diff(used) > 10)
    starts, ends = used[np.concatenate([[0], breaks + 1])], used[np.concatenate([breaks, [len(used) - 1]])] + 1
    return [(a * FRAME / RATE, b * FRAME / RATE) for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]


def _words(stretch: Spoken) -> list[Spoken]:
    count = max(1, round((stretch.end_s - stretch.start_s) / WORD_S))
    edges = np.linspace(stretch.start_s, stretch.end_s, count + 1).tolist()
    return [Spoken(a, b, stretch.speaker) for a, b in itertools.pairwise(edges)]


def _joined(stretches: Sequence[Spoken]) -> list[Spoken]:
    """Join stretches of a speaker that are at most 0.5 s apart, as references of calls do."""
    joined: list[Spoken] = []
    for stretch in sorted(stretches, key=lambda one: one.start_s):
        same = [place for place, one in enumerate(joined) if one.speaker == stretch.speaker]
        if same and stretch.start_s - joined[same[-1]].end_s < 0.5:
            joined[same[-1]] = Spoken(
                joined[same[-1]].start_s, max(stretch.end_s, joined[same[-1]].end_s), stretch.speaker
            )
        else:
            joined.append(stretch)
    return joined


def _in_room(wave: Wave, dice: np.random.Generator) -> Wave:
    """Add a room's echo, a microphone's filter and noise, the same for the whole conversation."""
    decay_s, wet = dice.uniform(0.15, 0.45), dice.uniform(0.1, 0.5)
    size = round(decay_s * RATE)
    echo = dice.normal(size=size) * 10 ** (-3 * np.arange(size) / size)
    echo *= wet / np.sqrt(np.sum(echo**2))
    echo[0] += 1
    points = -(-(len(wave) + size) // 65_536) * 65_536  # of small factors, for a fast transform
    hz = np.linspace(0, 8, points // 2 + 1)
    tilt = sum(dice.normal() * 2.0 / (k + 1) * np.cos(np.pi * (k + 1) * np.sqrt(hz / 8)) for k in range(4))  # dB
    spectrum = np.fft.rfft(wave, points) * np.fft.rfft(echo, points) * 10 ** (tilt / 20)
    out = np.fft.irfft(spectrum, points)[: len(wave)]
    noise = np.convolve(dice.standard_normal(len(wave) + 8, np.float32), 0.6 ** np.arange(9), "valid")
    wanted = np.sqrt(np.mean(out**2)) * 10 ** (-dice.uniform(18, 32) / 20)
    return np.asarray(out + noise * (wanted / np.sqrt(np.mean(noise**2))), np.float32)
