"""Taken text decoded again from kept frames: the same words with the same key terms, other words with others."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.ctc.bias import NO_BIAS, Bias
from model.ctc.rewind import KEPT_S, BeamRewind, RewindDecoder, RewindState
from tests.support.decoding.beam_toys import FRAME_S, decoder, speech_like
from tests.support.decoding.ctc_symbols import log_probs, spell


def decode(made: RewindDecoder, rows: np.ndarray, state: RewindState | None = None) -> RewindState:
    state = state or made.start(3)
    for first in range(0, len(rows), 2):
        made.advance([state], rows[None, first : first + 2])
    return state


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), frames=st.integers(5, 60), beams=st.sampled_from((4, 32)), lm=st.booleans())
def test_the_same_search_from_the_start_gives_the_same_words_to_the_bit(
    seed: int, frames: int, beams: int, lm: bool
) -> None:
    search = decoder(beams, lm=lm)
    made, rows = BeamRewind(search, search), speech_like(seed, frames)
    state = decode(made, rows)
    taken = made.take(state)
    decode(made, speech_like(seed + 1, 9), state)  # what came later does not count
    if state.until:
        assert made.decode_again(state, 0, (), NO_BIAS) == taken
    again = made.rewind(state, 0.0, NO_BIAS)
    made.release(state)
    assert made.rewind(state, 0.0, NO_BIAS) == again, "words of a released state can still be corrected"


def test_a_narrowed_search_is_one_that_was_made_so() -> None:
    wide, rows = decoder(32), speech_like(7, 60)
    words = []
    for search in (wide.narrowed(4, 5.0), decoder(4, reach=5.0)):
        state = search.start(0)
        search.advance([state], rows[None].copy())
        words.append(search.take(state))
        assert search.beams == 4
    assert words[0] == words[1]
    assert wide.beams == 32
    assert wide.narrowed(64, 20.0).digest == wide.digest


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(10, 80), st.sets(st.sampled_from(["ab", "ba", "ca", "a", "ab ba"])))
def test_only_words_in_the_place_of_a_key_term_change(seed: int, frames: int, terms: set[str]) -> None:
    made = BeamRewind(decoder(16, lm=False))
    state = decode(made, speech_like(seed, frames))
    taken = made.take(state)
    again = made.rewind(state, 0.0, Bias.of([(term, 1.0) for term in sorted(terms)]))
    words = () if again is None else again.words
    spelled = {part for term in terms for part in term.split()}
    assert [w for w in words if w.text not in spelled and w.text not in {t.text for t in taken}] == []
    assert all(one.end_s <= two.start_s + 1e-9 for one, two in pairwise(words))
    if not terms:
        assert words == taken


def test_the_words_are_those_of_the_search_alone() -> None:
    made, rows = BeamRewind(decoder(8)), speech_like(5, 60)
    state, plain = decode(made, rows), made.search.start(3)
    for first in range(0, len(rows), 2):
        made.search.advance([plain], rows[None, first : first + 2])
    assert made.words(state) == made.search.words(plain)
    assert made.stable_words(state) == made.search.stable_words(plain)
    assert made.take(state) == made.search.take(plain)
    assert made.supports_bias
    assert made.search.supports_bias


def unsure(*texts: str) -> np.ndarray:
    """Frames that spell the first text a little better than the second one."""
    first, second = (log_probs(spell(text), certainty=0.99) for text in texts)
    return np.log(0.55 * np.exp(first) + 0.45 * np.exp(second)).astype(np.float32)


def test_a_key_term_changes_the_words_after_the_boundary_and_nothing_before() -> None:
    made = BeamRewind(decoder(16, lm=False))
    rows = np.concatenate(
        [unsure("ab_ ", "ba_ "), unsure("ab_ ", "cb_ "), unsure("ab_ ", "ba_ "), log_probs(spell("_" * 8))]
    )
    state = decode(made, np.concatenate([log_probs(spell("___")), rows]))
    taken = made.take(state)
    assert len(taken) == 3
    term = Bias.of([("cb", 2.0)])
    again = made.rewind(state, taken[1].start_s, term)
    assert again is not None
    assert [word.text for word in again.before] == [taken[0].text]
    assert [word.text for word in again.words] == ["cb", "ab"]
    assert again.words[1] == taken[2], "as it was taken"
    assert again.start_s == pytest.approx(taken[0].end_s)
    assert again.words[0].start_s >= taken[0].end_s
    unchanged = made.rewind(state, taken[1].start_s, NO_BIAS)
    assert unchanged is not None
    assert [word.text for word in unchanged.words] == [word.text for word in taken[1:]]


def test_the_open_text_is_not_decoded_again() -> None:
    made = BeamRewind(decoder(16, lm=False))
    state = decode(made, log_probs(spell("___ab_ " + "_" * 9)))
    assert made.rewind(state, 0.0, NO_BIAS) is None, "nothing was taken"
    made.take(state)
    decode(made, log_probs(spell("ba_ ")), state)
    again = made.rewind(state, 0.0, NO_BIAS)
    assert again is not None
    assert [word.text for word in again.words] == ["ab"]
    assert again.end_s == pytest.approx(state.until * FRAME_S)


def test_what_is_kept_is_bounded() -> None:
    made = BeamRewind(decoder(4))
    state = made.start(0)
    frames = round(KEPT_S / FRAME_S)
    rows = speech_like(3, 50)
    for _ in range(3 * frames // len(rows)):
        made.advance([state], rows[None].copy())
        made.take(state)
    assert len(state.kept.counts) <= frames
    assert state.taken
    assert state.taken[0].end_s > state.frames * FRAME_S - 2 * KEPT_S
    again = made.rewind(state, 0.0, NO_BIAS)
    assert again is not None
    assert again.start_s >= (state.frames - frames) * FRAME_S
