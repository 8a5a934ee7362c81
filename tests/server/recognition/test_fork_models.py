"""Forks of the shipped model in 8 bits and in floats, and of a published model of each family.

`TUTTI_TEST_FORKS=10000`, with `--timeout=0`, makes as many forks of each model; by default the test is short.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from model.acoustic import load_model
from model.checkpoint import GRU
from model.ctc.interface import Decoder
from model.decoder import decoder_of
from model.recordings import read_pcm
from server.audio.pcm import PCM
from tests.support.audio.speech import samples
from tests.support.networks.probes import KINDS
from tests.support.networks.published import decoder_for, model_of
from tests.support.streams.forked_streams import check

FORKS = int(os.environ.get("TUTTI_TEST_FORKS", "40"))
SECONDS = 2.4


def recordings(count: int, rate: int) -> list[PCM]:
    """Return cuts of real speech, each with its own length."""
    audio = [read_pcm(sample.audio, rate) for sample in samples()]
    dice, cuts = np.random.default_rng(count), list[PCM]()
    while len(cuts) < count:
        whole = audio[len(cuts) % len(audio)]
        length = int(dice.uniform(0.3, 1.0) * SECONDS * rate)
        begin = int(dice.integers(0, max(1, len(whole) - length)))
        cuts.append(whole[begin : begin + length])
    return cuts


def run(model: Any, decoder: Decoder) -> None:
    assert check(model, decoder, recordings(max(80, FORKS // 5), model.config.sample_rate), FORKS) > FORKS / 3


@pytest.mark.parametrize("precision", ["int8", "fp32"])
def test_the_shipped_model(precision: str) -> None:
    model = load_model(GRU, device="cpu", precision=precision, threads=1)
    run(model, decoder_of(model.facts))


@pytest.mark.parametrize("kind", KINDS)
def test_published_models(kind: str) -> None:
    model = model_of(kind)
    run(model, decoder_for(model))
