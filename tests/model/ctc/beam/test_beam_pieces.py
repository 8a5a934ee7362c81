"""Beam search over word pieces: where it differs from one over letters, and errors."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.ctc.beam import BeamDecoder
from model.ctc.bias import NO_BIAS, Bias
from model.ctc.tokens import Tokens
from model.ctc.weights import DecodingWeights
from model.errors import VocabularyError
from tests.support.decoding.beam_toys import FRAME_S, LETTERS, PLAIN, random_log_probs, seen, speech_like, toy_lm
from tests.support.decoding.piece_toys import SYMBOLS, log_probs_of
from tests.support.decoding.piece_toys import piece_decoder as decoder

biases = st.sampled_from([NO_BIAS, Bias.of([("cab", 1.0)]), Bias.of([("a b", 2.0), ("bab", None), ("ab", -1.0)])])


def texts(made, rows, bias=NO_BIAS):
    state = made.start(0, bias)
    made.advance([state], rows[None])
    return [word.text for word in made.take(state)]


@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 8, 64]), st.booleans(), biases)
@settings(max_examples=40, deadline=None)
def test_pieces_of_one_letter_give_what_characters_give_to_the_bit(seed, beams, with_lm, bias):
    lm, rows = toy_lm() if with_lm else None, speech_like(seed, 120)
    plain = BeamDecoder(LETTERS, FRAME_S, beams=beams, lm=lm)
    made = [
        BeamDecoder(Tokens.of(LETTERS, 0), FRAME_S, beams=beams, lm=lm),
        BeamDecoder(Tokens.of([*"|ABC", "<blk>"], 4), FRAME_S, beams=beams, lm=lm),
    ]
    wanted = plain.start(1, bias)
    plain.advance([wanted], rows[None])
    for other, moved, fold in zip(made, (rows, np.roll(rows, -1, axis=1)), (str, str.upper), strict=True):
        state = other.start(1, bias)
        other.advance([state], moved[None])
        words, stable, counts = seen(plain, wanted)
        assert seen(other, state)[1:] == (stable, counts)
        assert other.words(state) == tuple(msgspec.structs.replace(word, text=fold(word.text)) for word in words)


def test_a_word_is_stable_once_the_next_has_begun_in_all_hypotheses():
    made = decoder(lm=False, weights=PLAIN, kept_share=0.99)
    state = made.start(0)
    made.advance([state], log_probs_of(SYMBOLS, ["▁c", "_", "ab"], certainty=0.999)[None])
    assert made.stable_words(state) == 0
    doubtful = log_probs_of(SYMBOLS, ["▁a"], certainty=0.5)
    doubtful[0, SYMBOLS.index("▁ab")] = np.log(0.495)
    made.advance([state], doubtful[None])
    made.advance([state], log_probs_of(SYMBOLS, ["_"], certainty=0.999)[None])
    assert [word.text for word in made.words(state)] == ["cab", "a"]
    assert made.stable_words(state) == 1
    assert (made.words(state)[0].start_s, made.words(state)[0].end_s) == (0.0, 3 * FRAME_S)


def test_words_keep_the_case_of_their_pieces_and_are_known_without_it():
    symbols = ("▁CA", "▁A", "B", "C", "<unk>", "<blk>")
    rows = log_probs_of(symbols, ["▁CA", "_", "B", "_", "▁A"], certainty=0.97)
    rows[2, [symbols.index("C"), symbols.index("B")]] = np.log(0.7), np.log(0.27)
    assert texts(decoder(symbols=symbols, lm=False), rows) == ["CAC", "A"]
    assert texts(decoder(symbols=symbols), rows) == ["CAB", "A"]


@pytest.mark.parametrize("with_lm", [False, True])
def test_a_single_hypothesis_takes_the_piece_whose_letters_score_best(with_lm):
    """The last frame favors `b` by 1.4; another word earns 3, and `cab a` is in the vocabulary, `cabb` is not."""
    rows = log_probs_of(SYMBOLS, ["▁c", "ab", "b"], certainty=0.999)
    rows[2, [SYMBOLS.index("b"), SYMBOLS.index("▁a")]] = np.log(0.8), np.log(0.199)
    plain = decoder(1, lm=with_lm, weights=PLAIN)
    assert texts(plain, rows) == ["cabb"]
    weights = {"lm_weight": 1.0, "unknown_cost": 5.0} if with_lm else {"word_bonus": 3.0}
    assert texts(decoder(1, lm=with_lm, weights=DecodingWeights(**weights)), rows) == ["cab", "a"]


@pytest.mark.parametrize("special", ["<unk>", "▁<unk>", "<sos/eos>", "[PAD]"])
def test_specials_are_never_written(special):
    symbols = ("<blk>", special, "▁a", "b")
    rows = np.log(np.array([[0.1, 0.8, 0.05, 0.05], [0.01, 0.97, 0.01, 0.01], [0.1, 0.1, 0.7, 0.1]], np.float32))
    assert texts(decoder(symbols=symbols), rows) in (["a"], ["aa"])


def test_cyrillic_letters_are_decoded_and_take_no_key_terms():
    symbols = (*"|абвё", "<blk>")
    made = decoder(symbols=symbols, lm=False)
    assert not made.supports_bias
    assert decoder().supports_bias
    assert texts(made, log_probs_of(symbols, [*"а_б|вё"], certainty=0.97), Bias.of([("ab", 5.0)])) == ["аб", "вё"]


REFUSED = [
    ((*(f"<0x{n:02X}>" for n in range(256)), "<blk>"), False, "bytes"),
    (("<blk>", "a", "ĤƆ"), False, "bytes"),
    (("<blk>", "▁a", "中"), False, "is a whole word"),
    (("<blk>", "▁of▁the"), False, "within one word"),
    (("<blk>", "▁" + "a" * 48), False, "48 letters"),
    (("<blk>", "▁а", "б"), True, "language model"),
    (("<blk>", "▁a", ","), True, "language model"),
]


@pytest.mark.parametrize(("symbols", "with_lm", "why"), REFUSED)
def test_symbols_that_cannot_be_spelled_are_rejected(symbols, with_lm, why):
    with pytest.raises(VocabularyError, match=why):
        decoder(symbols=symbols, lm=with_lm)


@pytest.mark.parametrize("beams", [1, 4, 64])
def test_endless_words_and_noise_stay_bounded(beams):
    """Noise over 500 pieces: the tree always fits its block, whether or not pieces begin words."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    pieces = [first + second for first in letters for second in letters[:19]]
    for begin in (0, 200):
        symbols = ("<blk>", *("▁" * (place < begin) + piece for place, piece in enumerate(pieces)))
        made = decoder(beams, symbols=symbols, lm=False, weights=DecodingWeights(word_bonus=9.0))
        state = made.start(0)
        made.advance([state], random_log_probs(3, 400, len(symbols))[None])
        words = made.take(state)
        assert max(len(word.text) for word in words) <= 49
        assert (len(words) > 1) == (begin > 0)
