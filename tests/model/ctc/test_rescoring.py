"""Lists of the best texts with exact scores: against the sum over every alignment."""

import math

import numpy as np
import pytest
from beam_toys import FRAME_S, LETTERS, all_texts, decoder, random_log_probs, speech_like, toy_lm, words_score
from hypothesis import given, settings
from hypothesis import strategies as st

from model.ctc.beam import BeamDecoder
from model.ctc.bias import Bias
from model.ctc.rescoring import best_texts, text_log_prob
from model.ctc.weights import DecodingWeights
from model.errors import VocabularyError

WEIGHTS = DecodingWeights(lm_weight=0.5, word_bonus=0.3, unknown_cost=2.0, unknown_letter_cost=0.2)
VOCABULARIES = [("", " ", "a"), ("", "a", "b"), ("", " ", "a", "b")]

seeds = st.integers(0, 2**32 - 1)


@given(seeds, st.sampled_from(VOCABULARIES), st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_the_log_probability_of_a_text_is_the_sum_over_its_alignments(seed, vocabulary, frames):
    rows = random_log_probs(seed, frames, len(vocabulary))
    for text, expected in all_texts(rows, vocabulary).items():
        assert text_log_prob(rows, text, vocabulary) == pytest.approx(expected, abs=1e-4)


def test_a_text_longer_than_the_sound_is_impossible():
    assert text_log_prob(random_log_probs(1, 2, len(LETTERS)), "abc", LETTERS) == -math.inf


@pytest.mark.parametrize(("text", "vocabulary"), [("ax", LETTERS), ("ab", ("", "ab", "a", "b"))])
def test_a_text_that_cannot_be_spelled_is_refused(text, vocabulary):
    with pytest.raises(VocabularyError):
        text_log_prob(random_log_probs(1, 4, len(vocabulary)), text, vocabulary)


@given(seeds, st.booleans())
@settings(max_examples=30, deadline=None)
def test_a_wide_beam_lists_the_best_texts_in_order_with_exact_scores(seed, with_lm):
    vocabulary, lm = ("", " ", "a", "b"), toy_lm() if with_lm else None
    rows = random_log_probs(seed, 5, len(vocabulary))
    made = BeamDecoder(
        vocabulary, FRAME_S, beams=1_024, lm=lm, weights=WEIGHTS, kept_share=1.0, reach=math.inf, merges=False
    )
    listed = best_texts(made, rows, 10)
    totals = all_texts(rows, vocabulary)
    exact = {text: total + words_score(text.split(), lm, WEIGHTS, set()) for text, total in totals.items()}
    assert [one.score for one in listed] == pytest.approx(sorted(exact.values(), reverse=True)[:10], abs=1e-4)
    for one in listed:
        assert one.sound == pytest.approx(totals[" ".join(one.words)], abs=1e-4)
        assert one.language == pytest.approx(words_score(list(one.words), lm, WEIGHTS, set()), abs=1e-5)


@given(seeds, st.booleans(), st.booleans())
@settings(max_examples=30, deadline=None)
def test_listing_changes_nothing_and_has_the_text_that_is_taken(seed, merges, with_term):
    """Of a long text whose first words are committed."""
    made = decoder(16, merges=merges)
    state = made.start(0, Bias.of([("ab", 2.0)] if with_term else []))
    made.advance([state], speech_like(seed, 80)[None])
    words = made.words(state)
    listed = made.hypotheses(state)
    assert (made.words(state), made.hypotheses(state)) == (words, listed)
    best = max(listed, key=lambda text: sum(listed[text]))
    assert best == tuple(word.text for word in made.take(state))


def test_without_merging_the_list_has_more_beginnings():
    rows = speech_like(11, 120)
    begins = [{one.words[:3] for one in best_texts(decoder(64, merges=merges), rows, 64)} for merges in (True, False)]
    assert len(begins[1]) > len(begins[0])


def test_nothing_said_is_one_text_without_words():
    (silence,) = best_texts(decoder(4), np.log(np.full((3, 5), [1 - 4e-9, 1e-9, 1e-9, 1e-9, 1e-9])), 5)
    assert silence.words == ()
    assert silence.sound == pytest.approx(0.0, abs=1e-6)
