"""The network layer by layer over whole recordings: frames of the streaming step, and the inputs of all products."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model.acoustic import log_probs_of
from model.published.compiled.compiling import PublishedNetwork, results_of, speech_windows
from model.published.compiled.fastconformer.network import FastConformer
from model.published.compiled.slots import CompiledSlots
from model.published.files import find_files
from model.published.rows import SPEECH
from model.recordings import read_pcm
from tests.support.networks.compiled import SIZES
from tests.support.networks.probes import make_probe
from tutti_asr_lab.training.published.layered import encode
from tutti_asr_lab.training.published.quantize import load_floats, run_in_floats

SMALL = {"hidden": 64, "heads": 2, "layers": 2}
ROWS, LANGUAGE = 3, 5


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"window": 17, "shift": 8, "left": 7},
        {"window": 121, "shift": 112, "left": 28},
        {"bins": 128, "prompts": 16, "tokens": "written", "vocabulary": 100},
    ],
    ids=["two frames a step", "one frame a step", "many frames a step", "a choice of languages"],
)
def test_the_frames_are_those_of_the_streaming_step(changes: dict[str, Any], tmp_path: Path) -> None:
    make_probe("nemo-transducer", tmp_path, **SMALL, **changes)
    files = find_files(tmp_path)
    network = PublishedNetwork.read(files)
    speech = speech_windows(files, network.contract, frames=1)
    windows = np.concatenate([speech] * 3)  # (W, B, L, bins): more frames than the left context has
    prompts = None if network.contract.prompts is None else np.full(ROWS, LANGUAGE)
    streamed = results_of(CompiledSlots(network.step(), capacity=ROWS), windows, prompts)
    assert isinstance(network.compiled, FastConformer)
    seen: dict[str, list[int]] = {}
    by_stream = [np.ascontiguousarray(windows[:, row]) for row in range(ROWS)]
    weights = network.compiled.weights
    encoded = encode(weights, by_stream, lambda name, x: seen.setdefault(name, []).append(x.shape[1]), LANGUAGE)
    for row in range(ROWS):
        np.testing.assert_allclose(encoded[row], streamed[:, row].reshape(-1, 64), atol=2e-4)
    sizes = {linear.name: {linear.weight.shape[0]} for linear in network.compiled.linears}
    assert {name: set(widths) for name, widths in seen.items()} == sizes


@pytest.mark.parametrize("kind", ["nemo-ctc", "nemo-transducer"])
def test_the_outputs_in_floats_are_those_of_a_server(kind: str, tmp_path: Path) -> None:
    """Of recordings of any length, with the frames before the first window and those of the flush."""
    make_probe(kind, tmp_path, **SIZES[kind])
    model, network = load_floats(tmp_path)
    speech = read_pcm(SPEECH, model.config.sample_rate)
    recordings = [speech[:60_000], speech[30_000:30_100], speech[5_000:34_567]]
    found, products = run_in_floats(model, network, recordings, lambda _: None)
    for one, other in zip(found, log_probs_of(model, recordings), strict=True):
        delay = model.config.delay_frames
        assert one.shape == other.shape
        np.testing.assert_allclose(one[delay:], other[delay:], atol=2e-3)
    assert len({product.name for product in products}) == len(products)
