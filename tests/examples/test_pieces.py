"""Word pieces: always the longest match, and no unknown words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.pieces import BEGIN_MARK, END, LETTERS, Pieces

ALONE = ("", *LETTERS, *(BEGIN_MARK + letter for letter in LETTERS))
PIECES = Pieces([*ALONE, "_th", "_the", "er", "re"])


def spelled(word: str) -> list[str]:
    return [PIECES.symbols[number] for number in PIECES.of(word)]


@pytest.mark.parametrize(
    ("word", "pieces"),
    [
        ("the", ["_the"]),
        ("there", ["_the", "re"]),
        ("other", ["_o", "t", "h", "er"]),
        ("err", ["_e", "r", "r"]),
        ("x", ["_x"]),
        ("naïve", ["_n", "a", "v", "e"]),
        ("<unk>", ["_u", "n", "k"]),
        ("42", []),
        ("", []),
    ],
)
def test_the_longest_piece_comes_next(word: str, pieces: list[str]) -> None:
    assert spelled(word) == pieces == spelled(word)


@given(st.lists(st.text(LETTERS, min_size=1), max_size=6))
def test_pieces_can_be_joined_to_the_text(words: list[str]) -> None:
    numbers = PIECES.of_text(words).tolist()
    assert numbers.index(END) == len(numbers) - 1
    assert "".join(PIECES.symbols[number] for number in numbers) == "".join(BEGIN_MARK + word for word in words)


@pytest.mark.parametrize("symbols", [ALONE[1:], ALONE[:-1], (*ALONE, "a"), ("a", "")])
def test_pieces_that_do_not_spell_every_word_are_refused(symbols: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="lack a letter, or contain a duplicate"):
        Pieces(symbols)
