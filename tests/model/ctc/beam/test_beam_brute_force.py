"""A sufficiently wide beam finds the best text: compared with the sum over all alignments."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.ctc import beam
from model.ctc.beam import BeamDecoder
from model.ctc.bias import NO_BIAS, Bias
from model.ctc.weights import DecodingWeights
from tests.support.decoding.beam_toys import FRAME_S, all_texts, penalised, random_log_probs, toy_lm, words_score

VOCABULARIES = [("", " ", "a"), ("", "a", "b"), ("", " ", "a", "b"), ("", "b", "a", " "), ("", "c", " ", "a", "b")]
WIDE = 2_000  # more than there are prefixes of up to six of the four symbols
LONGEST = {3: 6, 4: 6, 5: 5}  # frames by symbols: at most 5^5 alignments

seeds = st.integers(0, 2**32 - 1)
vocabularies = st.sampled_from(VOCABULARIES)
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


def found(log_probs, vocabulary, weights, lm=None, bias=NO_BIAS):
    decoder = BeamDecoder(vocabulary, FRAME_S, beams=WIDE, lm=lm, weights=weights, kept_share=1.0, reach=math.inf)
    state = decoder.start(0, bias)
    decoder.advance([state], log_probs[None])
    return " ".join(word.text for word in decoder.take(state))


def drawn(data, vocabulary):
    frames = data.draw(st.integers(1, LONGEST[len(vocabulary)]))
    return random_log_probs(data.draw(seeds), frames, len(vocabulary), data.draw(st.sampled_from([0.3, 1.0, 3.0])))


def holds(log_probs, vocabulary, weights, text, worth):
    """Check that no text scores more than the one found, except for rounding."""
    read = penalised(log_probs, weights)
    scores = {t: log_p + worth(t.split()) for t, log_p in all_texts(read, vocabulary).items()}
    assert text in scores
    assert scores[text] >= max(scores.values()) - 1e-5


@given(st.data(), vocabularies, all_weights)
@settings(max_examples=60, deadline=None)
def test_the_best_text_without_a_language_model(data, vocabulary, weights):
    log_probs = drawn(data, vocabulary)
    text = found(log_probs, vocabulary, weights)
    holds(log_probs, vocabulary, weights, text, lambda words: words_score(words, None, weights, set()))


@given(st.data(), vocabularies, all_weights)
@settings(max_examples=100, deadline=None)
def test_the_best_text_with_a_language_model(data, vocabulary, weights):
    log_probs, lm = drawn(data, vocabulary), toy_lm()
    text = found(log_probs, vocabulary, weights, lm)
    holds(log_probs, vocabulary, weights, text, lambda words: words_score(words, lm, weights, set()))


@given(
    st.data(),
    vocabularies,
    all_weights,
    st.sampled_from(["a", "ab", "bb", "aa b", "a a", "b a", "abb"]),
    st.sampled_from([-2.0, 0.5, 1.0, 3.0]),
    st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_the_best_text_with_a_key_term(data, vocabulary, weights, phrase, weight, with_lm):  # noqa: PLR0917
    log_probs, lm = drawn(data, vocabulary), toy_lm() if with_lm else None
    term = phrase.split()

    def worth(words):
        places, place = [], 0
        while place < len(words):
            if words[place : place + len(term)] == term:
                places.append(place)
                place += len(term)
            else:
                place += 1
        earned = len(places) * weight * weights.keyterm_boost * sum(map(len, term))
        forgiven = {p + i for p in places for i in range(len(term))} if weight > 0 else set()
        return words_score(words, lm, weights, forgiven) + earned

    text = found(log_probs, vocabulary, weights, lm, Bias.of([(phrase, weight)]))
    holds(log_probs, vocabulary, weights, text, worth)
