"""Key terms in pieces: how words are spelled, and the bonus of each symbol at each place of a text."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.ctc.bias import Bias
from model.ctc.tokens import Tokens
from model.transducer.spelling import Speller
from model.transducer.terms import PIECE_BOOST, TermState, piece_terms

SYMBOLS = ("<blk>", "<unk>", "▁a", "b", "▁b", "c", "▁ab", "▁", "一", "a")
SPELLER = Speller(Tokens.of(SYMBOLS, 0))


def named(speller, pieces):
    return " ".join(speller.tokens.symbols[piece] for piece in pieces)


@pytest.mark.parametrize(
    ("symbols", "word", "expected"),
    [
        (("<blk>", "▁t", "he", "▁the", "▁", "t", "h", "e"), "the", {"▁the"}),
        (("<blk>", "he", "▁t", "▁the", "▁", "t", "h", "e"), "hee", {"▁ he e"}),
        (("<blk>", "▁THE", "▁T", "H", "E"), "the", {"▁T H E", "▁THE"}),
        (("<blk>", "▁The", "▁the", "▁T", "▁t", "h", "e"), "the", {"▁The", "▁the", "▁T h e", "▁t h e"}),
        (("<blk>", " ", "t", "h", "e"), "the", {"t h e"}),
        (("<blk>", "京", "北"), "京", {"京"}),
        (
            ("<blk>", "▁", *(f"<0x{byte:02X}>" for byte in range(256))),
            "ab",
            {"<0x61> <0x62>", "<0x41> <0x62>", "<0x41> <0x42>"},
        ),
        (("<blk>", "▁a", "b"), "abc", set()),
    ],
)
def test_a_word_is_spelled_by_merges_and_by_frequency_in_three_cases(symbols, word, expected):
    speller = Speller(Tokens.of(symbols, 0))
    found = {named(speller, pieces).removeprefix("▁ ") for pieces in speller.spellings(word) if pieces}
    assert found == {each.removeprefix("▁ ") for each in expected}


def test_a_word_of_many_rare_pieces_is_less_likely_than_one_of_a_frequent_piece():
    speller = Speller(Tokens.of(("<blk>", "▁the", "▁k", "o", "w", "a", "l"), 0))
    assert speller.log_prob("the") > speller.log_prob("kowal") > speller.log_prob("x") == -np.inf


symbols = st.sampled_from([number for number, name in enumerate(SYMBOLS) if name not in {"<blk>", "<unk>"}])
terms = st.lists(
    st.tuples(st.sampled_from(["a", "ab", "a b", "bc ab", "ab 一", "bc", "一 一"]), st.sampled_from([1.0, 2.0, -1.0])),
    min_size=1,
    max_size=4,
)


@given(terms, st.lists(symbols, max_size=12))
def test_the_bonus_of_all_symbols_is_that_of_following_each(phrases, text):
    found, place = piece_terms(Bias.of(phrases), SPELLER), TermState()
    for symbol in text:
        row = found.bonus(place)
        each = [found.follow(place, other)[1] for other in range(len(SYMBOLS))]
        each[0] = each[1] = 0.0
        np.testing.assert_allclose(row, each, atol=1e-6)
        place, _ = found.follow(place, symbol)


def total(found, *names):
    place, bonus = TermState(), 0.0
    for name in names:
        place, more = found.follow(place, SYMBOLS.index(name))
        bonus += more
    return bonus


def test_a_phrase_earns_its_weight_per_piece_and_a_broken_one_nothing():
    found = piece_terms(Bias.of([("ab bc", 2.0)]), SPELLER)
    assert total(found, "▁ab", "▁b", "c") == pytest.approx(2 * PIECE_BOOST * 3)
    assert total(found, "▁ab", "▁b", "c", "▁a") == total(found, "▁ab", "▁b", "c", "▁") == 2 * PIECE_BOOST * 3
    assert total(found, "▁ab") == 2 * PIECE_BOOST
    assert total(found, "▁ab", "▁b", "b") == total(found, "▁ab", "▁b", "c", "b") == total(found, "b", "▁a") == 0


def test_a_negative_weight_counts_once_at_the_last_piece_and_is_given_back_inside_a_longer_word():
    found = piece_terms(Bias.of([("bc", -2.0)]), SPELLER)
    assert total(found, "▁b") == 0
    assert total(found, "▁b", "c") == pytest.approx(-2 * PIECE_BOOST * 2)
    assert total(found, "▁b", "c", "▁b") == pytest.approx(-2 * PIECE_BOOST * 2)
    assert total(found, "▁b", "c", "b") == 0


def test_a_phrase_that_no_pieces_spell_is_named():
    assert piece_terms(Bias.of([("ab", 1.0), ("ab x", 1.0)]), SPELLER).unspeakable == ("ab x",)
