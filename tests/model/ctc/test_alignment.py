"""Times of another recognizer's words: those of ours where they match, else between their neighbors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.ctc.alignment import LONGEST_S, aligned
from model.ctc.words import Word

BEGIN_S, END_S = 1.0, 6.0


def ours(text: str, gap_s: float = 0.5) -> list[Word]:
    """Return words of half a second each, the first at 2 s, with a gap after each."""
    return [Word(each, 2 + n * (0.5 + gap_s), 2.5 + n * (0.5 + gap_s), 0.9) for n, each in enumerate(text.split())]


def timed(theirs: str, words: list[Word]) -> list[tuple[str, float, float]]:
    found = aligned(theirs.split(), words, begin_s=BEGIN_S, end_s=END_S, confidence=0.4)
    return [(word.text, round(word.start_s, 3), round(word.end_s, 3)) for word in found]


def test_equal_and_replaced_words_have_our_times() -> None:
    words = ours("turn on the porch")
    found = aligned(["turn", "off", "the", "porch"], words, begin_s=BEGIN_S, end_s=END_S, confidence=0.4)
    assert [(word.start_s, word.end_s) for word in found] == [(word.start_s, word.end_s) for word in words]
    assert [word.confidence for word in found] == [0.9, 0.4, 0.9, 0.9]


@pytest.mark.parametrize(
    ("theirs", "text", "gap_s", "times"),
    [
        ("one two", "one three two", 0.5, [("one", 2.0, 2.5), ("two", 4.0, 4.5)]),  # a word of ours is left out
        ("one aa bb two", "one two", 0.5, [("one", 2.0, 2.5), ("aa", 2.5, 2.75), ("bb", 2.75, 3.0), ("two", 3.0, 3.5)]),
        # no room between them: the word before gives of its time, by letters
        ("one xx two", "one two", 0.0, [("one", 2.0, 2.3), ("xx", 2.3, 2.5), ("two", 2.5, 3.0)]),
        ("aa one", "one", 0.5, [("aa", 1.7, 2.0), ("one", 2.0, 2.5)]),
        ("aa bb cc dd one", "one", 0.5, [  # as far as the audio goes
            *((text, 1 + at / 4, 1.25 + at / 4) for at, text in enumerate(["aa", "bb", "cc", "dd"])), ("one", 2.0, 2.5)
        ]),
        ("one aa", "one", 0.5, [("one", 2.0, 2.5), ("aa", 2.5, 2.8)]),
    ],
)  # fmt: skip
def test_words_without_a_partner_lie_between_their_neighbors(
    theirs: str, text: str, gap_s: float, times: list[tuple[str, float, float]]
) -> None:
    assert timed(theirs, ours(text, gap_s)) == times


def test_nothing_is_nothing() -> None:
    assert timed("", ours("one two")) == []


TEXTS = st.lists(st.sampled_from(["a", "bb", "ccc", "dd"]), max_size=8)


@given(TEXTS, TEXTS.filter(bool), st.sampled_from([0.0, 0.04, 0.5]))
def test_words_are_in_order_inside_the_audio(theirs: list[str], texts: list[str], gap_s: float) -> None:
    words = ours(" ".join(texts), gap_s)
    end_s = words[-1].end_s + 0.1
    found = aligned(theirs, words, begin_s=BEGIN_S, end_s=end_s, confidence=0.4)
    assert [word.text for word in found] == theirs
    before_s = BEGIN_S
    for word in found:
        assert before_s - 1e-9 <= word.start_s < word.end_s <= end_s + 1e-9
        before_s = word.end_s
    assert LONGEST_S > 0


@given(TEXTS, TEXTS.filter(bool))
def test_the_alignment_keeps_as_many_words_as_the_fewest_edits_allow(theirs: list[str], texts: list[str]) -> None:
    """Compared with the distance by recursion."""

    def distance(left: tuple[str, ...], right: tuple[str, ...], memory: dict[tuple[int, int], int]) -> int:
        key = len(left), len(right)
        if not left or not right:
            return len(left) + len(right)
        if key not in memory:
            memory[key] = min(
                distance(left[1:], right[1:], memory) + (left[0] != right[0]),
                distance(left[1:], right, memory) + 1,
                distance(left, right[1:], memory) + 1,
            )
        return memory[key]

    from model.ctc.alignment import partners_of

    partners = partners_of(theirs, texts)
    pairs = [(theirs[n], texts[partner]) for n, partner in enumerate(partners) if partner is not None]
    edits = len(theirs) + len(texts) - 2 * len(pairs) + sum(left != right for left, right in pairs)
    assert edits == distance(tuple(theirs), tuple(texts), {})
    indices = [partner for partner in partners if partner is not None]
    assert indices == sorted(set(indices))
