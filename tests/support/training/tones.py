"""Corpus of tones, one per word, on which a tiny network trains in seconds; and a program that trains on it.

    python -m tests.support.training.tones FOLDER OUT PROCESSES [UPDATES]

Prints a line per update and saves a snapshot after every third one. Under torchrun it is one of the processes.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import soundfile

from model.config import ModelConfig
from tutti_asr_lab.training.acoustic import reporting
from tutti_asr_lab.training.acoustic.augment import Augmentation
from tutti_asr_lab.training.acoustic.parallel.launch import Place
from tutti_asr_lab.training.acoustic.recipe import Recipe
from tutti_asr_lab.training.acoustic.run import Every, Places, train

RATE = 16_000
TINY = ModelConfig(name="tiny", conv_channels=32, hidden=64, layers=1, lookahead=2)
WORDS = {"a": 400.0, "b": 900.0, "c": 2_000.0}
COUNT = 48  # recordings
PLAIN = Augmentation(
    speed=0, room=0, noise=0, telephone=0, lead_s=0.0, gain_db=(-3, 0), frequency_masks=0, time_masks=0
)
STRONG = Augmentation(speed=0.9, room=0.5, noise=0.9, telephone=0.5, time_masks=4)


def write_tones(folder: Path) -> Path:
    """Write recordings, noises and their manifests."""
    rng = np.random.default_rng(0)
    rows = []
    for number in range(COUNT):
        text = " ".join(rng.choice(list(WORDS), size=2))
        parts = [np.zeros(800)]
        for word in text.split():
            time = np.arange(int(0.24 * RATE)) / RATE
            parts += [0.5 * np.sin(2 * np.pi * WORDS[word] * time), np.zeros(2_400)]
        audio = np.concatenate(parts)
        soundfile.write(folder / f"{number}.flac", audio, RATE)
        row = {"audio": f"{number}.flac", "text": text, "source": "tones", "duration": len(audio) / RATE}
        rows.append({**row, "speaker": f"s{number % 6}"})
    (folder / "tones.jsonl").write_text("\n".join(json.dumps(r) for r in rows))
    (folder / "held_out.jsonl").write_text("\n".join(json.dumps(r) for r in rows[:8]))
    soundfile.write(folder / "hum.flac", rng.uniform(-0.3, 0.3, RATE), RATE)
    soundfile.write(folder / "rir.flac", np.exp(-np.arange(800) / 100) * rng.uniform(-1, 1, 800), RATE)
    (folder / "noise.jsonl").write_text("\n".join(json.dumps({"audio": f"{n}.flac"}) for n in ("hum", "rir")))
    return folder


def recipe(**changes: object) -> Recipe:
    """Recipe of a short run, by default with one micro-batch per update."""
    values = {"updates": 60, "micro_batch_s": 30.0, "micro_batches": 1, "warmup": 10}
    return Recipe(**{**values, "matrix_lr": 5e-3, "vector_lr": 5e-3, **changes})


def everything(updates: int = 20) -> Recipe:
    """Recipe with all options, four micro-batches per update; most epochs end with a shorter update."""
    return recipe(
        updates=updates,
        micro_batch_s=6.0,
        micro_batches=4,
        dropout=0.2,
        phone_weight=0.3,
        denominator=0.6,
        denominator_from=updates // 4,
        moving_average=0.9,
        augmentation=STRONG,
    )


def places(folder: Path, out: Path) -> Places:
    """Paths of a run in `folder`, with noises and without validation."""
    return Places([folder / "tones.jsonl"], [], [folder / "noise.jsonl"], out, folder / "cache")


def say(line: str) -> None:
    """Print a line and flush it."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


reporting.LINE_EVERY = 1 if __name__ in ("__main__", "__mp_main__") else reporting.LINE_EVERY

if __name__ == "__main__":
    given, out, processes, *more = sys.argv[1:]
    train(
        TINY,
        everything(int(more[0]) if more else 20),
        places(Path(given), Path(out)),
        processes=int(processes),
        place=Place.of(os.environ),
        device="cpu",
        every=Every(validation=1_000, snapshot=3),
        announce=say,
    )
