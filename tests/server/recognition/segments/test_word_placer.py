"""Reuse of placed words: same results as placing all of them, and the same tuple for the same words."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.ctc.words import Word
from server.recognition.segments.partials import WordPlacer, placed

BASE_S, START_S = 7.0, 7.5

edits = st.lists(
    st.tuples(
        st.integers(0, 3),  # words that go, from the end
        st.lists(st.floats(0.01, 0.5), max_size=3),  # lengths of those that come
        st.sampled_from([0.0, 0.08, 0.8]),  # how far the cursor goes
    ),
    max_size=12,
)


@given(edits)
def test_words_are_placed_as_if_nothing_were_remembered(script: list[tuple[int, list[float], float]]) -> None:
    memory, words, cursor_s = WordPlacer(), [Word("a", 0.0, 0.6, 0.5)], BASE_S
    for gone, lengths, further_s in script:
        words = words[: len(words) - gone]
        for length_s in lengths:
            start_s = words[-1].end_s if words else 0.0
            words.append(Word("b" * len(words), start_s, start_s + length_s, 0.9))
        cursor_s += further_s
        found = memory.place(tuple(words), BASE_S, START_S, cursor_s)
        assert found == placed(words, BASE_S, START_S, cursor_s)
        times = [START_S, *(time_s for word in found for time_s in (word.start_s, word.end_s)), max(START_S, cursor_s)]
        if cursor_s >= START_S:
            assert times == sorted(times)
        if found and found[-1].end_s < cursor_s:
            for word, own in zip(found, words, strict=True):
                assert word.end_s - word.start_s >= min(0.04, own.end_s - own.start_s) - 1e-9


def test_words_said_outside_of_their_segment_last_a_frame_at_its_edge() -> None:
    """Three words that were said before a cut, and two that a flush finds after the end of the audio."""
    words = [Word(text, at / 10, at / 10 + 0.08, 0.9) for at, text in enumerate(("wait", "no", "longer", "than"))]
    times = [(word.start_s, word.end_s) for word in placed(words, 29.0, 30.0, 31.0)]
    assert np.asarray(times) == pytest.approx(np.array([[0, 4], [4, 8], [8, 12], [12, 16]]) / 100 + 30)
    times = [(word.start_s, word.end_s) for word in placed(words, 29.9, 29.0, 30.02)]
    assert np.asarray(times) == pytest.approx(
        np.array([[90, 98], [98, 99.33], [99.33, 100.67], [100.67, 102]]) / 100 + 29, abs=1e-3
    )


def test_unchanged_words_are_the_same_objects() -> None:
    memory, words = WordPlacer(), tuple(Word("a", n / 10, (n + 1) / 10, 0.5) for n in range(3))
    first = memory.place(words, 0.0, 0.0, 9.0)
    assert memory.place((*words,), 0.0, 0.0, 9.1) is first
    longer = (*words[:2], msgspec.structs.replace(words[2], end_s=0.35))
    after = memory.place(longer, 0.0, 0.0, 9.2)
    assert all(now is before for now, before in zip(after[:2], first[:2], strict=True))
    assert after[2].end_s == 0.35


def test_restart_places_all_words_again() -> None:
    memory, words = WordPlacer(), (Word("a", 0.0, 0.1, 0.5),)
    memory.place(words, 0.0, 0.0, 9.0)
    memory.restart()
    assert memory.place(words, 3.0, 3.0, 9.0)[0].start_s == 3.0


def test_a_moved_word_keeps_its_language_and_what_a_network_wrote() -> None:
    words = [Word("a", n / 10, (n + 1) / 10, 0.5, "en-US", written="A,") for n in range(3)]
    assert {(word.language, word.written) for word in placed(words, 0.0, 0.15, 0.25)} == {("en-US", "A,")}
