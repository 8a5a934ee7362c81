"""Greedy CTC decoding: incremental == whole, words, times, stability."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.ctc.greedy import GreedyDecoder, best_path
from tests.support.decoding.ctc_symbols import FRAME_S, VOCABULARY, log_probs, spell, symbols_lists


def decode(symbols, cuts=(), skip=0):
    decoder = GreedyDecoder(VOCABULARY, FRAME_S)
    state = decoder.start(skip)
    for part in np.split(log_probs(symbols), cuts):
        decoder.advance([state], part[None])
    return decoder, state


@given(symbols_lists, st.data())
@settings(max_examples=300, deadline=None)
def test_any_split_of_the_frames_gives_the_text_of_the_whole(symbols, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(symbols)), max_size=8)))
    decoder, state = decode(symbols, cuts)
    text = " ".join(w.text for w in decoder.words(state))
    assert text == best_path(log_probs(symbols), VOCABULARY)
    assert state.frames == len(symbols)


@given(symbols_lists, st.data())
@settings(max_examples=300, deadline=None)
def test_stable_words_never_change_and_taking_them_loses_nothing(symbols, data):
    decoder = GreedyDecoder(VOCABULARY, FRAME_S)
    state = decoder.start(0)
    taken, shown = [], []
    for row in log_probs(symbols):
        decoder.advance([state], row[None, None])
        words = decoder.words(state)
        stable = [w.text for w in words[: decoder.stable_words(state)]]
        now = [w.text for w in taken] + stable
        assert now[: len(shown)] == shown
        shown = now
        if data.draw(st.booleans()):
            taken += decoder.take(state, decoder.stable_words(state))
    taken += decoder.take(state)
    assert " ".join(w.text for w in taken) == best_path(log_probs(symbols), VOCABULARY)
    assert not state.has_text
    assert all(a.end_s <= b.start_s for a, b in pairwise(taken))


@given(st.lists(symbols_lists, min_size=2, max_size=5))
@settings(max_examples=100, deadline=None)
def test_streams_decoded_together_do_not_mix(rows):
    length = min(map(len, rows))
    decoder = GreedyDecoder(VOCABULARY, FRAME_S)
    states = [decoder.start(0) for _ in rows]
    decoder.advance(states, np.stack([log_probs(row[:length]) for row in rows]))
    for row, state in zip(rows, states, strict=True):
        expected = best_path(log_probs(row[:length]), VOCABULARY)
        assert " ".join(w.text for w in decoder.words(state)) == expected


def test_skipped_frames_give_no_text_and_no_time():
    decoder, state = decode(spell("ca_b"), skip=2)
    assert [w.text for w in decoder.words(state)] == ["b"]
    assert decoder.words(state)[0].start_s == pytest.approx(FRAME_S)
    assert state.frames == 2


def test_silence_counts_blanks_and_spaces_since_the_last_letter():
    _, state = decode(spell("a_ __"))
    assert state.silence_frames == 4


def test_revision_moves_only_with_the_words():
    decoder, state = decode(spell("a"))
    before = state.revision
    decoder.advance([state], log_probs(spell("a___"))[None])
    assert state.revision == before
    decoder.advance([state], log_probs(spell("b"))[None])
    assert state.revision > before
