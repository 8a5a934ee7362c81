"""Reuse of placed words: same results as placing all of them, and the same tuple for the same words."""

from __future__ import annotations

from dataclasses import replace

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
        assert found == tuple(placed(word, BASE_S, START_S, cursor_s) for word in words)


def test_unchanged_words_are_the_same_objects() -> None:
    memory, words = WordPlacer(), tuple(Word("a", n / 10, (n + 1) / 10, 0.5) for n in range(3))
    first = memory.place(words, 0.0, 0.0, 9.0)
    assert memory.place((*words,), 0.0, 0.0, 9.1) is first
    longer = (*words[:2], replace(words[2], end_s=0.35))
    after = memory.place(longer, 0.0, 0.0, 9.2)
    assert all(now is before for now, before in zip(after[:2], first[:2], strict=True))
    assert after[2].end_s == 0.35


def test_restart_places_all_words_again() -> None:
    memory, words = WordPlacer(), (Word("a", 0.0, 0.1, 0.5),)
    memory.place(words, 0.0, 0.0, 9.0)
    memory.restart()
    assert memory.place(words, 3.0, 3.0, 9.0)[0].start_s == 3.0
