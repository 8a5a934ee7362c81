"""How far the hypotheses agree on the best words: by compiled code as by the texts of all of them."""

import math

import numba
import numpy as np
import pytest

from model.ctc.beam import BeamDecoder
from model.ctc.greedy import GreedyDecoder
from model.ctc.interface import Agreeing
from model.ctc.search import kernel
from model.ctc.search import layout as at
from model.ctc.search.layout import OUT_INTS, OUT_WORD
from tests.support.decoding.beam_toys import LETTERS, random_log_probs, toy_lm
from tests.support.decoding.phone_toys import OUTPUTS, phone_decoder


@numba.njit
def _scores(address, setup, scores):
    stream = kernel.stream_at(address, setup.beams)
    texts = kernel.texts_of(setup, stream.header)
    for h in range(stream.header[at.HYPOTHESES]):
        scores[h] = kernel._score_ended(texts, stream, h)
    return stream.header[at.HYPOTHESES]


@numba.njit
def _words(address, setup, hypothesis):
    stream = kernel.stream_at(address, setup.beams)
    return kernel._write_path(kernel.texts_of(setup, stream.header), stream, hypothesis, True)


def ending_scores(decoder, state):
    """Return the score of each hypothesis, (H,); -inf for one represented by another one."""
    scores = np.empty(decoder.beams, np.float64)
    return scores[: _scores(state.opened(), decoder._setup, scores)]


def ending_texts(decoder, state, hypothesis):
    """Return the words of a hypothesis, without times."""
    count = _words(state.opened(), decoder._setup, hypothesis)
    records = np.frombuffer(state.block, np.int32, OUT_INTS * count, decoder._out_words)
    words = records[OUT_WORD::OUT_INTS].tolist()
    committed = [word.text for word in state.committed]
    if decoder.lm is None or min(words, default=0) < 0:  # spelled by their symbols
        return (*committed, *(word.text for word in decoder._read(state, count)[0]))
    return (*committed, *[decoder.lm.words[word] for word in words])


NEAR = 4.0


def expected(decoder, state):
    """Return the same shares, made of the text of each hypothesis."""
    mine = [word.text for word in decoder.words(state)]
    scores = ending_scores(decoder, state)
    weights = {}
    for h, score in enumerate(scores):
        if score > -np.inf and score >= max(scores) - NEAR:
            text = ending_texts(decoder, state, h)
            weights[text] = weights.get(text, 0.0) + math.exp(score - max(scores))
    total = sum(weights.values())
    return [
        sum(weight for text, weight in weights.items() if list(text[: count + 1]) == mine[: count + 1]) / total
        for count in range(len(mine))
    ]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kind", ["letters", "phones"])
def test_hypotheses_agree_by_the_words_of_all_near_ones(kind, seed):
    decoder, rows = BeamDecoder(LETTERS, 0.04, beams=16, lm=toy_lm()), random_log_probs(seed, 14, len(LETTERS))
    if kind == "phones":
        decoder, unused = phone_decoder(beams=16), np.full((14, len(LETTERS)), -3, np.float32)
        rows = np.concatenate([unused, random_log_probs(seed, 14, OUTPUTS - len(LETTERS))], axis=1)
    state, seen = decoder.start(0), set()
    for row in rows:
        decoder.advance([state], row[None, None])
        before = decoder.words(state)
        shares = decoder.agreement(state)
        assert decoder.words(state) == before
        committed = decoder.stable_words(state)
        assert shares[:committed] == [1.0] * committed
        assert shares == pytest.approx(expected(decoder, state), abs=1e-9)
        assert shares == sorted(shares, reverse=True)
        seen |= set(shares)
    assert any(0.0 < share < 0.99 for share in seen), "nothing was open"
    decoder.release(state)


def test_a_decoder_with_one_hypothesis_does_not_offer_it():
    assert isinstance(phone_decoder(), Agreeing)
    assert not isinstance(GreedyDecoder(LETTERS, 0.04), Agreeing)
