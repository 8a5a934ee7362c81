"""A sufficiently wide beam finds the best text, over letters and over pieces: compared with the sum over alignments."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.ctc import beam
from model.ctc.beam import BeamDecoder
from model.ctc.bias import NO_BIAS, Bias
from model.ctc.weights import DecodingWeights
from tests.support.decoding.beam_toys import FRAME_S, all_texts, penalised, random_log_probs, toy_lm
from tests.support.decoding.piece_toys import PIECES, all_sequences, best_texts, tokens_of

LETTERS = [("", " ", "a"), ("", "a", "b"), ("", " ", "a", "b"), ("", "b", "a", " "), ("", "c", " ", "a", "b")]
WIDE = 2_000  # more than there are prefixes of up to six of the four symbols
FRAMES = {3: 6, 4: 6, 5: 5, 6: 4}  # by symbols: at most 5^5 alignments

all_weights = st.builds(
    DecodingWeights,
    lm_weight=st.sampled_from([0.0, 0.4, 1.0]),
    word_bonus=st.sampled_from([-1.0, 0.0, 1.5]),
    unknown_cost=st.sampled_from([0.0, 2.0, 6.0]),
    unknown_letter_cost=st.sampled_from([0.0, 0.7]),
    keyterm_boost=st.sampled_from([0.5, 1.5]),
    blank_penalty=st.sampled_from([0.0, 1.2]),
)
phrases = st.sampled_from(["", "a", "ab", "ba", "bb", "aab", "aa b", "a a", "b a", "ab a", "a b", "c ab", "cab", "abb"])


@st.composite
def piece_lists(draw):
    """Three to six symbols with the blank at any index."""
    others = draw(st.lists(st.sampled_from(PIECES[1:]), min_size=2, max_size=5, unique=True))
    return tuple(draw(st.permutations(["<blk>", *others])))


@pytest.mark.parametrize("kind", ["letters", "pieces"])
@settings(max_examples=250, deadline=None)
@given(data=st.data(), weights=all_weights, phrase=phrases, boost=st.sampled_from([-2.0, 0.5, 3.0]), lm=st.booleans())
def test_the_best_text(kind, data, weights, phrase, boost, lm):  # noqa: PLR0917
    symbols = data.draw(piece_lists() if kind == "pieces" else st.sampled_from(LETTERS))
    frames = data.draw(st.integers(1, FRAMES[len(symbols)]))
    sharpness = data.draw(st.sampled_from([0.3, 1.0, 3.0]))
    log_probs = random_log_probs(data.draw(st.integers(0, 2**32 - 1)), frames, len(symbols), sharpness)
    language_model = toy_lm() if lm else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(beam, "MAX_BEAMS", WIDE)
        vocabulary = tokens_of(symbols) if kind == "pieces" else symbols
        options = {"beams": WIDE, "lm": language_model, "weights": weights, "kept_share": 1.0, "reach": math.inf}
        made = BeamDecoder(vocabulary, FRAME_S, **options)
        state = made.start(0, Bias.of([(phrase, boost)]) if phrase else NO_BIAS)
        made.advance([state], log_probs[None])
    if kind == "pieces":
        totals = all_sequences(penalised(log_probs, weights, symbols.index("<blk>")), symbols)
    else:
        totals = {tuple(text): total for text, total in all_texts(penalised(log_probs, weights), symbols).items()}
    found = " ".join(word.text for word in made.take(state))
    assert found in best_texts(totals, language_model, weights, tuple(phrase.split()), boost)
