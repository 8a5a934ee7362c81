"""The encoder-decoder network: against an independent one in floats, on speech, at its limits, on threads, damaged."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

from model.errors import CheckpointError
from model.evaluation.digest import SAMPLES
from model.moonshine.model import LEAST_SAMPLES, LONGEST_S, SAMPLE_RATE, SHIPPED, Moonshine, read_symbols, text_of
from model.moonshine.transcriber import SegmentTranscriber, words_of
from model.recordings import read_manifest, read_pcm
from tests.support.networks import moonshine_in_floats

ONE_SECOND = np.zeros(SAMPLE_RATE, np.int16)


@pytest.fixture(scope="module")
def network() -> Moonshine:
    return Moonshine.load()


def sample(name: str) -> np.ndarray:
    return read_pcm(SAMPLES.with_name(f"{name}.flac"))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("call_back", "Can you call me back on Monday afternoon?"),
        ("order", "Where is my order?"),
        ("porch_fan", "Turn on the porch fan."),
    ],
)
def test_speech_has_the_text_that_was_said(network: Moonshine, name: str, text: str) -> None:
    reading = network.read(sample(name))
    assert network.text_of(reading) == text
    assert reading.ended
    assert -0.4 < reading.log_prob < 0


def test_scores_are_near_those_of_an_independent_network_in_floats(network: Moonshine) -> None:
    pcm = sample("order")
    reading = network.read(pcm)
    symbols, log_prob = moonshine_in_floats.read(load(SHIPPED.read_bytes()), pcm)
    assert tuple(symbols) == reading.symbols
    assert reading.log_prob == pytest.approx(log_prob, abs=0.02)


def test_a_segment_has_the_same_bits_after_and_beside_others(network: Moonshine) -> None:
    recordings = [read_pcm(one.audio) for one in read_manifest(SAMPLES)][:6]
    alone = [Moonshine.load().read(pcm) for pcm in recordings]
    with ThreadPoolExecutor(3) as threads:
        together = list(threads.map(network.read, recordings * 2))
    assert together == alone * 2


def test_any_length_is_read_and_a_text_has_an_end_or_all_symbols_that_it_may_have(network: Moonshine) -> None:
    speech = np.resize(sample("order"), int(LONGEST_S * SAMPLE_RATE))
    for samples in (0, 1, LEAST_SAMPLES - 1, LEAST_SAMPLES, 5_000, len(speech)):
        reading = network.read(speech[:samples])
        most = math.ceil(max(samples, LEAST_SAMPLES) / SAMPLE_RATE * 6.5)
        assert reading.ended == (len(reading.symbols) < most)
        assert np.isfinite(reading.log_prob)


def test_the_loudest_samples_have_finite_scores(network: Moonshine) -> None:
    square = np.where(np.arange(SAMPLE_RATE) % 80 < 40, 32_767, -32_768).astype(np.int16)
    assert np.isfinite(network.read(square).log_prob)


def test_symbols_are_lengths_and_bytes() -> None:
    long = "é".encode() * 100
    blob = bytes([5]) + b"<unk>" + bytes([4]) + "▁a".encode() + bytes([6]) + b"<0xC3>" + bytes([6]) + b"<0xA9>"
    blob += bytes([200 - 128 + 128, 1]) + long
    symbols = read_symbols(blob)
    assert symbols[4] == long
    assert text_of([0, 1, 2, 3, 1], symbols) == "aé a"


@pytest.mark.parametrize(
    ("text", "words", "numbers"),
    [
        ("It costs $3.50, he said.", "it costs three point five zero dollars he said", range(2, 7)),
        ("Twenty-five per cent of 91.", "twenty five percent of ninety one", (4, 5)),
        ("Yes.", "yes", ()),
        ("Dr. Smith's", "doctor smith's", ()),
    ],
)
def test_words_are_those_that_are_said_and_numbers_are_known(text: str, words: str, numbers: Sequence[int]) -> None:
    said, written, at_numbers = words_of(text)
    assert (said, at_numbers) == (tuple(words.split()), frozenset(numbers))
    assert len(written) == len(said)


def test_words_keep_their_capitals_and_marks_and_no_mark_of_an_abbreviation() -> None:
    text = "Mr. O'Brien, who is 42, left well-known NASA... in May. Why?"
    written = "Mister O'Brien, who is forty two, left well known NASA, in May. Why?"
    assert words_of(text)[1] == tuple(written.split())


def test_a_text_that_repeats_itself_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Moonshine, "text_of", lambda *_: "six " * 60)
    assert SegmentTranscriber().transcribe(ONE_SECOND) is None


def test_a_text_without_an_end_is_not_used(monkeypatch: pytest.MonkeyPatch, network: Moonshine) -> None:
    reading = network.read(sample("order"))
    cut = type(reading)(reading.symbols, reading.log_prob, ended=False)
    monkeypatch.setattr(Moonshine, "read", lambda *_: cut)
    assert SegmentTranscriber().transcribe(ONE_SECOND) is None


def test_the_digest_is_that_of_the_file() -> None:
    assert SegmentTranscriber().digest == hashlib.sha256(SHIPPED.read_bytes()).hexdigest() == Moonshine.load().digest


@pytest.mark.parametrize("change", ["missing", "shape", "weights", "no file"])
def test_damaged_weights_are_refused_by_name(tmp_path: Path, change: str) -> None:
    path, tensors = tmp_path / "weights.safetensors", dict[str, Any](load(SHIPPED.read_bytes()))
    if change == "missing":
        del tensors["encoder.norm"]
    elif change == "shape":
        tensors["symbols.weight"] = tensors["symbols.weight"][:-1]
    elif change == "weights":
        tensors["symbols.weight"] = tensors["symbols.weight"] + np.int8(64)
    if change != "no file":
        path.write_bytes(save(tensors))
    with pytest.raises(CheckpointError, match=f"cannot read {path}"):
        Moonshine.load(path)
