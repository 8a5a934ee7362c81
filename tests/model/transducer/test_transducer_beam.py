"""Beam search of transducers: exact where nothing is dropped, the same bits in any batch, stable words that stay."""

from __future__ import annotations

import itertools
from collections import defaultdict

import numpy as np
import pytest

from model.config import BEAMS
from model.ctc.bias import NO_BIAS, Bias
from model.decoder import decoder_of
from model.errors import PublishedModelError
from model.transducer.beam import MAX_BEAMS, TransducerBeamDecoder
from tests.model.transducer.test_transducer_decoder import CONFUSED, KINDS, TEXT, biases, decoded, outputs_of
from tests.support.decoding.toy_transducer import FRAME_S, ToyNetworks, spoken, text_of
from tests.support.networks.published import model_of

TINY = ("<blk>", "▁a", "▁b")


def beam_decoder(beams=4, **options):
    return TransducerBeamDecoder(ToyNetworks(**options), FRAME_S, "toy", beams=beams)


def all_sequences(networks, frames, most):
    """Probability of each sequence of symbols: the sum over all alignments with at most `most` symbols a frame."""
    found = defaultdict(float)
    ways = [way for count in range(most + 1) for way in itertools.product((1, 2), repeat=count)]
    for alignment in itertools.product(ways, repeat=len(frames)):
        context, output = networks.start
        log_prob = 0.0
        for frame, way in zip(frames, alignment, strict=True):
            for symbol in (*way, *([0] if len(way) < most else [])):
                logits = networks.join(frame[None], output)[0].astype(np.float64)
                log_prob += logits[symbol] - np.log(np.exp(logits).sum())
                if symbol:
                    context, output = networks.advance(context, np.array([symbol]))
        found[tuple(itertools.chain(*alignment))] += np.exp(log_prob)
    return found


@pytest.mark.parametrize(("most", "count"), [(1, 2), (2, 1)])
def test_scores_are_those_of_all_alignments_where_no_hypothesis_is_dropped(most, count):
    decoder = TransducerBeamDecoder(ToyNetworks(TINY, most), FRAME_S, beams=MAX_BEAMS)
    frames = np.random.default_rng(3).standard_normal((count, 3)).astype(np.float32)
    state = decoder.start(0)
    decoder.advance([state], frames[None])
    expected = all_sequences(decoder.networks, frames, most)
    scores = {one.symbols: one.score for one in state.hypotheses}
    assert set(scores) == set(expected)
    best = max(expected.values())
    for symbols, score in scores.items():
        assert score == pytest.approx(np.log(expected[symbols] / best), abs=1e-4)


def test_a_text_that_is_clear_is_found_with_its_times():
    decoder, frames = beam_decoder(), spoken(TEXT)
    state = decoder.start(0)
    decoder.advance([state], frames)
    words = decoder.take(state)
    assert [word.text for word in words] == TEXT.split()
    assert [round(word.start_s / FRAME_S) for word in words] == [0, 4, 8, 12]
    assert state.silence_frames == 1
    assert not state.has_text


def test_a_key_term_is_found_and_given_back_where_it_does_not_continue():
    decoder, frames = beam_decoder(), spoken(TEXT, confused=CONFUSED)
    assert text_of(decoder, frames, NO_BIAS) == "bado keru miro nasi"
    assert text_of(decoder, frames, Bias.of([("kelu", 1.0)])) == TEXT
    assert text_of(decoder, frames, Bias.of([("kelu nasi", 0.4)])) == "bado keru miro nasi"
    assert text_of(decoder, frames, Bias.of([("keru", -2.0)])) == TEXT


def test_terms_that_change_rescore_what_is_not_committed():
    decoder, frames = beam_decoder(), spoken(TEXT, confused=CONFUSED)
    state = decoder.start(0)
    decoder.advance([state], frames[:, :7])
    decoder.set_bias(state, Bias.of([("kelu", 2.0)]))
    decoder.advance([state], frames[:, 7:])
    assert " ".join(word.text for word in decoder.take(state)) == TEXT


def test_stable_words_never_change_and_agree():
    decoder, frames = beam_decoder(), spoken(f"{TEXT} {TEXT} {TEXT}", noise=2.5, seed=2)
    state, before = decoder.start(0), ()
    changed = False
    for at in range(frames.shape[1]):
        decoder.advance([state], frames[:, at : at + 1])
        words = decoder.words(state)
        stable = words[: decoder.stable_words(state)]
        assert stable[: len(before)] == before
        shares = decoder.agreement(state)
        assert len(shares) == len(words)
        assert all(share > 0.999 for share in shares[: len(stable)])
        changed |= any(share < 0.9 for share in shares)
        before = stable
    assert changed
    first, rest = decoder.take(state, 2), decoder.words(state)
    assert [word.text for word in (*first, *rest)] == [word.text for word in words]
    assert decoder.take(state) == rest


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_has_the_same_bits_alone_in_company_saved_and_copied(kind):
    model = model_of(kind)
    if model.networks.rows.dependent:
        pytest.skip("the graphs of this processor depend on the batch")
    decoder, frames = decoder_of(model.facts, decoder="beam"), outputs_of(kind, rows=3, frames=16)
    each = biases(model, 3)
    together = decoded(decoder, [decoder.start(2, bias) for bias in each], frames, 8)
    for row, bias in enumerate(each):
        state = decoder.start(2, bias)
        decoded(decoder, [state], frames[row : row + 1, :9], 3)
        copy, saved = decoder.copy(state), decoder.load(decoder.save(state), bias)
        for again in (state, copy, saved):
            assert decoded(decoder, [again], frames[row : row + 1, 9:], 1)[0] == together[row]
    greedy = decoder_of(model.facts)
    with pytest.raises(ValueError, match="damaged"):
        beam_decoder().load(decoder.save(decoder.start(0)))
    assert greedy.digest != decoder.digest


def test_beams_that_a_transducer_has_not_are_refused():
    facts = model_of(KINDS[0]).facts
    assert decoder_of(facts, decoder="beam").beams == 4
    for beams in (9, BEAMS):  # also the default of other models
        with pytest.raises(PublishedModelError, match=f"has 1 to 8 beams, not --beams {beams}"):
            decoder_of(facts, decoder="beam", beams=beams)
