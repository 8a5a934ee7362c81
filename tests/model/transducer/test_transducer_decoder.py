"""Greedy decoding of transducers with key terms: alone and in batches, changed, saved, copied."""

from __future__ import annotations

import numpy as np
import pytest

from model.ctc.bias import NO_BIAS, Bias
from model.decoder import decoder_of
from tests.support.decoding.toy_transducer import SYLLABLES, pieces_of, spoken, text_of, toy_decoder
from tests.support.networks.published import model_of

TEXT = "bado kelu miro nasi"
KINDS = ("zipformer2-transducer", "nemo-transducer")


CONFUSED = dict(zip(pieces_of("kelu"), pieces_of("keru"), strict=True))  # pieces that sound as the second ones


def test_a_key_term_replaces_a_piece_that_is_a_little_likelier_and_nothing_else():
    decoder, frames = toy_decoder(), spoken(TEXT, confused=CONFUSED)
    assert text_of(decoder, frames, NO_BIAS) == "bado keru miro nasi"
    assert text_of(decoder, frames, Bias.of([("kelu", 1.0)])) == TEXT
    assert text_of(decoder, frames, Bias.of([("kelu", 0.1)])) == "bado keru miro nasi"
    assert text_of(decoder, spoken("bado keru miro"), Bias.of([("kelu", 1.0)])) == "bado keru miro"


def test_a_term_of_negative_weight_makes_way_for_another_word():
    decoder, frames = toy_decoder(), spoken(TEXT, confused=CONFUSED)
    assert text_of(decoder, frames, Bias.of([("keru", -1.0)])) == TEXT


@pytest.mark.parametrize("weight", [1.0, 2.0])
def test_a_phrase_that_breaks_loses_no_symbol(weight):
    """What is given back must not turn the next symbol into a blank."""
    decoder, frames = toy_decoder(), spoken("bado kelu miro")
    assert text_of(decoder, frames, Bias.of([("bado kelu nasi", weight)])).split()[:2] == ["bado", "kelu"]
    assert len(text_of(decoder, frames, Bias.of([("bado kelu nasi", weight)])).split()) == 3


def test_terms_are_found_and_not_invented():
    """Of 40 unknown names with one confused piece each; and the same names in texts without them."""
    random = np.random.default_rng(5)
    words = ["".join(random.choice(SYLLABLES, 3)) for _ in range(160)]
    names, others = words[:40], words[40:]
    bias, decoder = Bias.of([(name, 1.0) for name in names]), toy_decoder()
    found = without = false = 0
    for number, name in enumerate(names):
        before, after = others[number], others[number + 40]
        other = SYLLABLES[(SYLLABLES.index(name[2:4]) + 7) % len(SYLLABLES)]
        wrong = {pieces_of(name)[1]: pieces_of(name[:2] + other)[1]}
        frames = spoken(f"{before} {name} {after}", noise=0.7, seed=number, confused=wrong)
        found += name in text_of(decoder, frames, bias).split()
        without += name in text_of(decoder, frames, NO_BIAS).split()
        plain = text_of(decoder, spoken(f"{before} {after}", noise=0.7, seed=number), bias).split()
        false += len(set(plain) & set(names))
    assert without <= 10
    assert found >= 30
    assert false == 0


def outputs_of(kind, rows=6, frames=40):
    model = model_of(kind)
    return np.random.default_rng(4).standard_normal((rows, frames, model.transducer.width)).astype(np.float32)


def biases(model, rows):
    """Terms of each row, spelled in the model's pieces: words that it writes itself."""
    names = [name.removeprefix("▁") for name in model.tokens.symbols if name.isascii() or name.startswith("▁")]
    words = [name for name in names if name.isalpha() and name.islower()]
    return [Bias.of([(word, 2.0) for word in words[row :: rows + 1]]) if row % 3 else NO_BIAS for row in range(rows)]


def decoded(decoder, states, frames, step):
    for at in range(0, frames.shape[1], step):
        decoder.advance(states, frames[:, at : at + step])
    return [(decoder.save(state), decoder.words(state)) for state in states]


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_with_terms_has_the_same_bits_alone_and_among_others(kind):
    model = model_of(kind)
    if model.networks.rows.dependent:
        pytest.skip("the graphs of this processor depend on the batch")
    decoder, frames = decoder_of(model.facts), outputs_of(kind)
    each = biases(model, len(frames))
    assert not any(decoder.unspeakable(bias) for bias in each)
    together = decoded(decoder, [decoder.start(3, bias) for bias in each], frames, 8)
    plain = decoded(decoder, [decoder.start(3) for _ in each], frames, 8)
    assert [row[1] == other[1] for row, other in zip(together, plain, strict=True)] == [True, False, False] * 2
    for row, bias in enumerate(each):
        for step in (1, 8, 40):
            assert decoded(decoder, [decoder.start(3, bias)], frames[row : row + 1], step)[0] == together[row]


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_that_was_saved_or_copied_continues_as_the_original(kind):
    model = model_of(kind)
    decoder, frames = decoder_of(model.facts), outputs_of(kind, rows=1)
    bias = biases(model, 3)[1]
    state = decoder.start(0, bias)
    decoded(decoder, [state], frames[:, :20], 4)
    saved, copy = decoder.load(decoder.save(state), bias), decoder.copy(state)
    (expected,) = decoded(decoder, [state], frames[:, 20:], 4)
    assert decoded(decoder, [saved], frames[:, 20:], 4) == decoded(decoder, [copy], frames[:, 20:], 4) == [expected]
    with pytest.raises(ValueError, match="damaged or not one of the transducer's decoder"):
        toy_decoder().load(decoder.save(decoder.start(0)))


def test_terms_that_change_apply_from_the_next_frame_on_even_inside_a_word():
    decoder, frames = toy_decoder(), spoken(f"{TEXT} {TEXT}", confused=CONFUSED)
    half, bias = frames.shape[1] // 2, Bias.of([("kelu", 1.0)])
    for begin, expected in ((half, f"bado keru miro nasi {TEXT}"), (half + 6, f"bado keru miro nasi {TEXT}")):
        state = decoder.start(0)
        decoder.advance([state], frames[:, :begin])
        decoder.set_bias(state, bias)
        decoder.advance([state], frames[:, begin:])
        assert " ".join(word.text for word in decoder.take(state)) == expected
    state = decoder.start(0, bias)
    decoder.advance([state], frames[:, :half])
    decoder.set_bias(state, NO_BIAS)
    decoder.advance([state], frames[:, half:])
    assert " ".join(word.text for word in decoder.take(state)) == f"{TEXT} bado keru miro nasi"
