"""Broken containers from `tutti_asr_lab.trials.hostile`: uploaded or live, each is either read or refused."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest

from server.audio.decoder import open_decoder
from server.audio.formats import audio_form
from server.audio.recordings.recording import Recording
from server.errors import MediaError, Refused
from tutti_asr_lab.trials.hostile.containers import broken

SAMPLE = Path(__file__).parents[4] / "model" / "samples" / "porch_fan.flac"
ANY, RATE = audio_form(None, None), 16_000
WITHOUT_A_RATE = (105, 15_596)  # a second FLAC, and a track, at 0 Hz


def made(seed: int) -> bytes:
    return broken(SAMPLE.read_bytes(), random.Random(0).randbytes(64_000), random.Random(seed))


@pytest.mark.parametrize("seeds", [WITHOUT_A_RATE, range(1_000), range(1_000, 2_000)])
def test_an_upload_is_read_or_refused(seeds: tuple[int, ...] | range) -> None:
    for seed in seeds:
        with contextlib.suppress(Refused):
            recording = Recording(made(seed), ANY, rate=RATE, max_s=14_400.0)
            while recording.next_block() is not None:
                pass


@pytest.mark.parametrize("seeds", [WITHOUT_A_RATE, range(1_000)])
def test_live_audio_is_read_or_refused(seeds: tuple[int, ...] | range) -> None:
    for seed in seeds:
        body, decoder = made(seed), open_decoder(ANY, RATE)
        with contextlib.suppress(MediaError):
            for at in range(0, len(body), 1_000):
                decoder.feed(body[at : at + 1_000], 10.0)
            decoder.flush(10.0)
