"""A sufficiently wide beam over pieces finds the best sequence: compared with the sum over all alignments."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.ctc import beam
from model.ctc.beam import BeamDecoder
from model.ctc.bias import NO_BIAS, Bias
from model.ctc.weights import DecodingWeights
from tests.support.decoding.beam_toys import FRAME_S, penalised, random_log_probs, toy_lm
from tests.support.decoding.piece_toys import PIECES, all_sequences, best_texts, tokens_of

WIDE = 2_000
FRAMES = {3: 6, 4: 6, 5: 5, 6: 4}  # by symbols

all_weights = st.builds(
    DecodingWeights,
    lm_weight=st.sampled_from([0.0, 0.4, 1.0]),
    word_bonus=st.sampled_from([-1.0, 0.0, 1.5]),
    unknown_cost=st.sampled_from([0.0, 2.0, 6.0]),
    unknown_letter_cost=st.sampled_from([0.0, 0.7]),
    keyterm_boost=st.sampled_from([0.5, 1.5]),
    blank_penalty=st.sampled_from([0.0, 1.2]),
)


@pytest.fixture(autouse=True)
def wide_beams(monkeypatch):
    monkeypatch.setattr(beam, "MAX_BEAMS", WIDE)


@st.composite
def vocabularies(draw):
    """Three to six symbols with the blank at any index."""
    others = draw(st.lists(st.sampled_from(PIECES[1:]), min_size=2, max_size=5, unique=True))
    return tuple(draw(st.permutations(["<blk>", *others])))


def found(log_probs, symbols, weights, lm, bias):
    made = BeamDecoder(tokens_of(symbols), FRAME_S, beams=WIDE, lm=lm, weights=weights, kept_share=1.0, reach=math.inf)
    state = made.start(0, bias)
    made.advance([state], log_probs[None])
    return " ".join(word.text for word in made.take(state))


@given(
    st.data(),
    vocabularies(),
    all_weights,
    st.sampled_from(["", "a", "ab", "ba", "aab", "ab a", "a b", "c ab", "cab"]),
    st.sampled_from([-2.0, 0.5, 3.0]),
    st.booleans(),
)
@settings(max_examples=250, deadline=None)
def test_the_best_sequence_of_pieces(data, symbols, weights, phrase, weight, with_lm):  # noqa: PLR0917
    frames = data.draw(st.integers(1, FRAMES[len(symbols)]))
    sharpness = data.draw(st.sampled_from([0.3, 1.0, 3.0]))
    log_probs = random_log_probs(data.draw(st.integers(0, 2**32 - 1)), frames, len(symbols), sharpness)
    lm = toy_lm() if with_lm else None
    bias = Bias.of([(phrase, weight)]) if phrase else NO_BIAS
    text = found(log_probs, symbols, weights, lm, bias)
    totals = all_sequences(penalised(log_probs, weights, symbols.index("<blk>")), symbols)
    assert text in best_texts(totals, lm, weights, tuple(phrase.split()), weight)
