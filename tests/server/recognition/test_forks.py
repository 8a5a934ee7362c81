"""Forks: their text is that of a flush, the stream does not notice them, and none is needed."""

from __future__ import annotations

import numpy as np

from model.ctc.greedy import GreedyDecoder
from model.int8_model import Int8Model
from model.recordings import read_pcm
from server.audio.pcm import PCM
from tests.support.audio.speech import samples
from tests.support.networks.quantized_networks import random_quantized
from tests.support.servers.recognizers.spelling import SpellingModel, spell, spelling_decoder
from tests.support.servers.recognizers.wavering import WaveringDecoder
from tests.support.streams.forked_streams import check


def texts(count: int, seed: int = 0) -> list[PCM]:
    dice = np.random.default_rng(seed)
    return [spell("".join(dice.choice(list("abcde  "), dice.integers(4, 40)))) for _ in range(count)]


def test_streams_do_not_notice_forks_whose_text_is_that_of_a_flush() -> None:
    assert check(SpellingModel(), spelling_decoder(), texts(90), forks=200) > 100


def test_where_no_slot_is_spare_forks_are_refused_and_streams_go_on() -> None:
    assert check(SpellingModel(), spelling_decoder(), texts(90), forks=200, slots=1) > 10
    assert check(SpellingModel(), spelling_decoder(), texts(30), forks=50, slots=0) == 0


def test_an_engine_that_is_lost_changes_no_stream_and_no_fork() -> None:
    assert check(SpellingModel(), spelling_decoder(), texts(60), forks=150, losses=0.05) > 80


def test_no_decoder_state_of_a_fork_is_left() -> None:
    decoder = WaveringDecoder()
    assert check(SpellingModel(), decoder, texts(30), forks=60)
    assert not decoder.open


def test_forks_of_a_network_are_flushes_to_the_bit_of_its_log_probabilities() -> None:
    """Random weights, so that every step writes something; the recordings are real."""
    model = Int8Model(random_quantized(), "random")
    decoder = GreedyDecoder(model.config.vocabulary, model.config.frame_s)
    audio = [read_pcm(sample.audio) for sample in samples()]
    assert check(model, decoder, [pcm[start : start + 32_000] for pcm in audio for start in (0, 9_000)], forks=60)
