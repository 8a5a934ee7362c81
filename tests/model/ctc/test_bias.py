"""Key terms: the automaton against a naive implementation, and their effect on the beam search."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.acoustic import load_own
from model.ctc.beam import BeamDecoder
from model.ctc.bias import NO_BIAS, Bias, BiasError
from model.ctc.greedy import GreedyDecoder
from model.ctc.search import layout as at
from model.ctc.weights import DecodingWeights
from model.decoder import decoder_of
from model.lm.spelling import LETTERS as COLUMNS
from tests.support.decoding.beam_toys import FRAME_S, LETTERS, toy_lm
from tests.support.decoding.ctc_symbols import log_probs, spell


def score(bias, text, *, ended=True):
    """Return the score of a text so far, or the final one if it ends, by the automaton."""
    terms, state, earned = bias.in_letters(), at.TERM_START, 0.0
    for character in text + " " * ended:
        column = at.SPACE_COLUMN if character == " " else COLUMNS.find(character)
        while True:
            children = range(terms.ints[state, at.TERM_FIRST], terms.ints[state + 1, at.TERM_FIRST])
            fitting = [child for child in children if terms.ints[child, at.TERM_COLUMN] == column]
            if fitting or state in (at.TERM_START, at.TERM_ELSEWHERE):
                break
            earned += terms.floats[state, at.TERM_BANK]
            state = int(terms.ints[state, at.TERM_FAIL])
        state = fitting[0] if fitting else at.TERM_START if character == " " else at.TERM_ELSEWHERE
    return earned + float(terms.floats[state, at.TERM_BANK if ended else at.TERM_VALUE])


def most_earned(phrases, words):
    """Return the highest sum of scores of phrases that do not overlap."""
    best = [0.0]
    for end in range(1, len(words) + 1):
        options = [best[-1]]
        for phrase, weight in phrases:
            term = phrase.split()
            if words[max(0, end - len(term)) : end] == term:
                options.append(best[end - len(term)] + weight * sum(map(len, term)))
        best.append(max(options))
    return best[-1]


# the automaton

words_of_few_letters = st.text("ab", min_size=1, max_size=3)
texts = st.lists(words_of_few_letters, max_size=12)
phrases_of_words = st.lists(words_of_few_letters, min_size=1, max_size=3).map(" ".join)


@given(phrases_of_words, st.sampled_from([0.5, 2.0]), texts)
@settings(max_examples=300, deadline=None)
def test_one_phrase_scores_at_every_complete_occurrence(phrase, weight, words):
    assert score(Bias.of([(phrase, weight)]), " ".join(words)) == pytest.approx(most_earned([(phrase, weight)], words))


@given(st.dictionaries(words_of_few_letters, st.sampled_from([-1.0, 0.5, 2.0]), min_size=1, max_size=6), texts)
@settings(max_examples=300, deadline=None)
def test_single_words_score_independently(weights, words):
    expected = sum(weights.get(word, 0.0) * len(word) for word in words)
    assert score(Bias.of(weights.items()), " ".join(words)) == pytest.approx(expected)


@given(st.dictionaries(phrases_of_words, st.sampled_from([0.5, 1.0, 2.0]), min_size=1, max_size=6), texts)
@settings(max_examples=500, deadline=None)
def test_overlapping_phrases_score_something_and_at_most_the_best_sum(weights, words):
    text, bias = " ".join(words), Bias.of(weights.items())
    most = most_earned(list(weights.items()), words)
    assert score(bias, text) <= most + 1e-9
    assert (score(bias, text) > 0) == (most > 0)


@given(st.dictionaries(phrases_of_words, st.sampled_from([-2.0, 0.5, 2.0]), min_size=1, max_size=6), texts)
@settings(max_examples=300, deadline=None)
def test_no_symbol_adds_more_than_the_bound_of_the_search(weights, words):
    bias, text = Bias.of(weights.items()), " ".join(words)
    so_far = [score(bias, text[:i], ended=False) for i in range(len(text) + 1)]
    assert max(np.diff(so_far), default=0.0) <= bias.in_letters().floats[0, at.TERM_GAIN] + 1e-9


@pytest.mark.parametrize(
    ("text", "earned"),
    [
        ("k", 1),  # letter by letter
        ("kube", 4),
        ("kuber", 0),  # and subtracted again
        ("kub ", 0),
        ("kube ", 4),  # kept at the end of the word
        ("kube x", 4),
        ("x kube", 4),
        ("xkube", 0),  # not inside another word
        ("new ", 6),
        ("new york", 14),
        ("new yorker", 0),
        ("new york c", 16),  # a longer phrase continues
        ("new york city ", 22),
        ("new york city x", 14),  # the longer phrase is subtracted, the complete one kept
        ("new york city hall ", 30),
    ],
)
def test_the_score_of_a_prefix(text, earned):
    bias = Bias.of([("kube", 1.0), ("new york", 2.0), ("new york city hall", 2.0)])
    assert score(bias, text, ended=False) == earned


def test_phrases_are_spelled_as_the_model_spells():
    bias = Bias.of([("Café-Zürich!", 1.0), ("O’Neill", None), (" a  B ", 2.0)], 1.5)
    assert bias.phrases == (("cafe zurich", 1.0), ("o'neill", 1.5), ("a b", 2.0))


@pytest.mark.parametrize("phrase", ["Ἀθῆναι", "Москва", "서울", "plain שלום", "…", "?", "'"])
def test_a_phrase_that_cannot_be_spelled_is_rejected_by_name(phrase):
    with pytest.raises(BiasError, match=re.escape(repr(phrase))):
        Bias.of([("plain", 1.0), (phrase, 1.0)])


def test_the_last_of_equal_phrases_counts_and_weights_are_bounded():
    assert Bias.of([("a", 1.0), ("A", 99.0)]).phrases == (("a", 10.0),)


def test_equal_key_terms_share_one_automaton():
    assert Bias.of([("a", 1.0)]).in_letters() is Bias.of([("A", None)]).in_letters()
    assert Bias.of([]) == NO_BIAS
    assert hash(Bias.of([("ab", 1.0)])) != hash(NO_BIAS)


@pytest.mark.parametrize(
    "phrases",
    [
        [(f"{'a' * i}", 1.0) for i in range(1, 1_002)],
        [("a" * 10_000, 1.0), ("b" * 10_000, 1.0)],
        [(" ".join("a" * 21), 1.0)],
        [("a", float("nan"))],
    ],
)
def test_too_many_or_too_long_key_terms_are_rejected(phrases):
    with pytest.raises(BiasError):
        Bias.of(phrases)


# in the search

WEIGHTS = DecodingWeights(lm_weight=1.0, word_bonus=0, unknown_cost=4.0, unknown_letter_cost=1.0, keyterm_boost=1.0)


def doubt(text, place, rival, lead):
    """Return log-probs of `text` in which another symbol at `place` is likelier by `lead`."""
    rows = log_probs(spell(text), certainty=0.97)
    share = 0.97 / (1 + np.exp(lead))
    rows[place, LETTERS.index(text[place])], rows[place, LETTERS.index(rival)] = np.log([share, 0.97 - share])
    return rows


def test_key_terms_may_change_while_a_word_is_open():
    """Words that are not stable yet are rescored with the new key terms; the old ones have no effect.

    Holds for 16 beams and a kept share of 0.99. With at least 24 beams or 0.995, as in serving, it does
    not hold on this toy model: old terms change times and confidences. The cause is unknown.
    """
    made = BeamDecoder(LETTERS, FRAME_S, beams=16, weights=WEIGHTS, lm=toy_lm(), kept_share=0.99)
    rows, wanted = doubt("_cac_ a", 3, "b", 2.0), Bias.of([("cac", 3.0)])
    for cut in range(len(rows)):
        for first, second in ((NO_BIAS, wanted), (wanted, NO_BIAS)):
            changed, fresh = made.start(0, first), made.start(0, second)
            for state in (changed, fresh):
                made.advance([state], rows[None, :cut])
                made.set_bias(state, second)
                made.advance([state], rows[None, cut:])
            assert made.take(changed) == made.take(fresh)


def test_stable_words_stay_when_key_terms_change():
    made = BeamDecoder(LETTERS, FRAME_S, weights=WEIGHTS)
    state = made.start(0)
    made.advance([state], log_probs(spell("_cab_ __a"), certainty=0.999)[None])
    stable = made.words(state)[: made.stable_words(state)]
    assert [w.text for w in stable] == ["cab"]
    made.set_bias(state, Bias.of([("cab", -10.0)]))
    made.advance([state], log_probs(spell("__"), certainty=0.9)[None])
    assert made.words(state)[:1] == stable


def test_greedy_decoding_accepts_and_ignores_key_terms():
    made = GreedyDecoder(LETTERS, FRAME_S)
    state = made.start(0, Bias.of([("cac", 9.0)]))
    made.set_bias(state, Bias.of([("caa", 9.0)]))
    made.advance([state], doubt("_cac_", 3, "b", 2.0)[None])
    assert [w.text for w in made.words(state)] == ["cab"]
    assert not made.supports_bias
    made.release(state)
    with pytest.raises(ValueError, match="released"):
        made.release(state)


def test_phrases_that_no_symbols_express_are_named():
    assert Bias.of([("snow", 1.0), ("\u4f60\u597d", 1.0)]).in_letters().unspeakable == ("\u4f60 \u597d",)
    sounds = {"snow": [(1, 2)], "white": [(3,), (4,)]}
    spoken = Bias.of([("snow white", 1.0), ("snow blue", 1.0)]).in_phones(lambda word: sounds.get(word, []))
    assert spoken.unspeakable == ("snow blue",)
    shipped = decoder_of(load_own().facts)
    assert shipped.unspeakable(Bias.of([("\u4f60\u597d", 1.0), ("zyzzyvas 24/7", 2.0)])) == ("\u4f60 \u597d",)
