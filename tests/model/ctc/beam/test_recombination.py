"""Hypotheses with equal future scores are merged if the beam has no room for both."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.ctc.bias import NO_BIAS, Bias
from model.ctc.search import layout as at
from model.ctc.search.saved_beam import Memory
from model.ctc.weights import DecodingWeights
from tests.support.decoding.beam_toys import LETTERS, PLAIN, decoder, speech_like
from tests.support.decoding.ctc_symbols import log_probs, spell

TERMS = Bias.of([("cab", 1.0), ("a b", 2.0)])


def futures(memory: Memory) -> list[tuple[int, int, tuple[int, ...], bool]]:
    """Return what the scores of later frames depend on, for each hypothesis."""
    found = []
    for node in memory.hypotheses[: memory.header[at.HYPOTHESES], at.NODE].tolist():
        ints, word, above = memory.nodes[node], [], node
        while memory.nodes[above, at.LETTERS] > 0:
            word.append(int(memory.nodes[above, at.SYMBOL]))
            above = int(memory.nodes[above, at.PARENT])
        last = (int(ints[at.SYMBOL]),)
        found.append((int(ints[at.LM_STATE]), int(ints[at.BIAS_STATE]), tuple(word) or last, bool(word)))
    return found


@given(st.integers(0, 2**32 - 1), st.booleans(), st.sampled_from([NO_BIAS, TERMS]))
@settings(max_examples=30, deadline=None)
def test_no_two_hypotheses_of_a_full_beam_have_the_same_future(seed, with_lm, bias):
    """With all five symbols kept there are more than four candidates from the first frame on."""
    made = decoder(4, lm=with_lm, kept_share=1.0, reach=math.inf)
    state = made.start(0, bias)
    memory = Memory(state.block, 4)
    for row in speech_like(seed, 60):
        made.advance([state], row[None, None])
        found = futures(memory)
        assert len(set(found)) == len(found)


def doubtful_words(count: int) -> np.ndarray:
    """Return words of one letter, b or c, about equally likely."""
    rows = log_probs(spell("b " * count), certainty=0.97)
    rows[::2, [LETTERS.index("b"), LETTERS.index("c")]] = np.log(0.49), np.log(0.48)
    return rows


def test_uncertain_words_leave_room_for_alternatives_of_the_last():
    """`ba` leads by 0.2 until the text ends, then `a` by as much; 32 texts before them are within 0.1."""
    weights = DecodingWeights(lm_weight=1.0, word_bonus=0, unknown_cost=1, unknown_letter_cost=0)
    last = log_probs(spell("___a_ _"), certainty=0.97)
    last[1] = np.log([0.18, 0.01, 0.01, 0.73, 0.01])  # with or without a b before the a
    made = decoder(8, weights=weights, kept_share=0.99)
    state = made.start(0)
    made.advance([state], np.concatenate([doubtful_words(5), last])[None])
    assert made.words(state)[-1].text == "ba"
    assert [word.text for word in made.take(state)] == [*"bbbbb", "a"]


@pytest.mark.parametrize("odds", [(0.36, 0.33, 0.31), (0.31, 0.33, 0.36), (0.33, 0.36, 0.31)])
@pytest.mark.parametrize("beams", [2, 4, 6, 8, 12])
def test_a_merged_hypothesis_has_the_likeliest_text_whatever_was_merged_before(beams, odds):
    """Two of three alternatives are likelier together than the third, which is the likeliest alone."""
    word = log_probs(spell("b "), certainty=0.97)
    word[0, [LETTERS.index(letter) for letter in "abc"]] = np.log(0.98 * np.array(odds))
    made = decoder(beams, lm=False, weights=PLAIN)
    state = made.start(0)
    made.advance([state], np.concatenate([word, word, word, log_probs(spell("ab_ "), certainty=0.97)])[None])
    likeliest = "abc"[int(np.argmax(odds))]
    assert [word.text for word in made.words(state)] == [likeliest] * 3 + ["ab"]


def test_uncertain_words_are_committed_once_the_future_does_not_depend_on_them():
    made = decoder(8, lm=False, weights=PLAIN)
    state = made.start(0)
    made.advance([state], np.concatenate([doubtful_words(3), log_probs(spell("ab_ ab"), certainty=0.97)])[None])
    assert made.stable_words(state) >= 3


@pytest.mark.parametrize(("beams", "words"), [(3, ["a"]), (8, [])])
def test_the_merged_hypothesis_has_the_probability_of_both(beams, words):
    """The empty text is likelier than `a` and than `b`, but not than both; with room for all none is merged."""
    rows = log_probs(spell("_ "), certainty=0.999)
    rows[0] = np.log([0.45, 1e-9, 0.3, 0.25, 1e-9])
    made = decoder(beams, lm=False, weights=PLAIN)
    state = made.start(0)
    made.advance([state], rows[None])
    assert [word.text for word in made.words(state)] == words
