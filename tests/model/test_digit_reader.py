"""Digits of segments by the GRU network: which segments it reads, and which of its words are taken."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import model
from model import checkpoint
from model.acoustic import load_own
from model.ctc.words import Word
from model.decoder import Language, decoder_of, digit_reader_of, second_passes_of
from model.digit_reader import LEAST_CONFIDENCE, MOST_CONFIDENCE, DigitReader
from model.recordings import read_pcm

SAMPLES = Path(model.__file__).parent / "samples"


def pcm_of(name: str) -> np.ndarray:
    return read_pcm(SAMPLES / f"{name}.flac")


def spoken(text: str, confidence: float = MOST_CONFIDENCE) -> list[Word]:
    return [Word(word, 0.1, 0.3, confidence) for word in text.split()]


@pytest.fixture(scope="module")
def reader() -> DigitReader:
    acoustic = load_own()
    digits = second_passes_of(acoustic.facts, decoder_of(acoustic.facts))["context"].digits
    assert isinstance(digits, DigitReader)
    return digits


@pytest.mark.parametrize("words", ["heaven", "of a", "", "one seven two", "is one oh two"])
def test_digits_are_read_where_the_words_are_few_or_numbers(reader: DigitReader, words: str) -> None:
    (seven,) = reader.digits(spoken(words), pcm_of("seven"), 3.0)
    assert seven.text == "seven"
    assert seven.confidence >= LEAST_CONFIDENCE
    assert 3.0 <= seven.start_s < seven.end_s < 3.0 + len(pcm_of("seven")) / 16_000 + 0.2


@pytest.mark.parametrize(
    ("words", "confidence"),
    [("heaven is here", 0.1), ("at least one of them", 0.1), ("heaven", MOST_CONFIDENCE + 0.01)],
)
def test_other_segments_keep_their_words(reader: DigitReader, words: str, confidence: float) -> None:
    assert reader.digits(spoken(words, confidence), pcm_of("seven"), 0.0) == ()


@pytest.mark.parametrize("name", ["no", "cancel", "name", "percent"])
def test_words_that_are_no_digits_are_not_taken(reader: DigitReader, name: str) -> None:
    assert reader.digits([], pcm_of(name), 0.0) == ()
    assert reader.digits([], np.zeros(0, np.int16), 0.0) == ()


def test_a_network_with_other_sounds_has_no_reader() -> None:
    config = checkpoint.read_config(checkpoint.named(Path("tutti-mandarin")))
    assert digit_reader_of(config, Language()) is None
