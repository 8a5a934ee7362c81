"""Prefix beam search: bit-identical for any split and batch; stable words, times, takes."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.ctc.beam import KEPT_SHARE
from model.ctc.bias import NO_BIAS, Bias
from model.ctc.greedy import GreedyDecoder
from model.ctc.weights import DecodingWeights
from tests.support.decoding.beam_toys import FRAME_S, LETTERS, PLAIN, decoded, decoder, seen, speech_like
from tests.support.decoding.ctc_symbols import log_probs, spell, symbols_lists
from tests.support.decoding.piece_toys import SYMBOLS, log_probs_of, piece_decoder, spoken_pieces, tokens_of

seeds = st.integers(0, 2**32 - 1)
biases = st.sampled_from([NO_BIAS, Bias.of([("cab", 1.0)]), Bias.of([("a b", 2.0), ("bb", None), ("ab", -1.0)])])

KINDS = {"letters": (decoder, speech_like), "pieces": (piece_decoder, spoken_pieces)}
piece_lists = st.lists(st.sampled_from(["_", "_", "▁a", "▁ab", "a", "b", "ba", "▁c", "▁"]), min_size=1, max_size=50)


@pytest.mark.parametrize("kind", KINDS)
@given(seed=seeds, frames=st.integers(1, 200), beams=st.sampled_from([1, 2, 8, 33]), bias=biases, data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_split_of_the_frames_and_any_batch_give_the_same_to_the_bit(kind, seed, frames, beams, bias, data):  # noqa: PLR0917
    make, speech = KINDS[kind]
    made, rows = make(beams), speech(seed, frames)
    whole, split, other = made.start(2, bias), made.start(2, bias), made.start(0, data.draw(biases))
    made.advance([whole], rows[None])
    for part in np.split(rows, sorted(data.draw(st.lists(st.integers(0, frames), max_size=12)))):
        made.advance([other, split], np.stack([part[::-1], part]))
        made.words(split)  # reading words does not change the state
    assert seen(made, split) == seen(made, whole)
    assert made.take(split) == made.take(whole)


def test_threads_may_decode_different_streams_at_once():
    made, rows = decoder(16), [speech_like(seed, 400) for seed in range(8)]

    def texts(seed):
        state = made.start(0)
        for part in np.split(rows[seed], 100):
            made.advance([state], part[None])
        return made.take(state)

    alone = [texts(seed) for seed in range(8)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(texts, range(8))) == alone


def test_layout_and_dtype_of_the_log_probs_do_not_matter():
    made, rows = decoder(), speech_like(1, 50)
    frozen = rows.copy()
    frozen.flags.writeable = False
    forms = [rows, frozen, np.asfortranarray(rows), rows.astype(np.float64)]
    states = [made.start(0) for _ in forms]
    for state, form in zip(states, forms, strict=True):
        made.advance([state], form[None])
    assert len({made.take(state) for state in states}) == 1


# stable words


@pytest.mark.parametrize("kind", KINDS)
@given(seed=seeds, beams=st.sampled_from([1, 4, 16]), with_lm=st.booleans(), data=st.data())
@settings(max_examples=60, deadline=None)
def test_stable_words_never_change_and_every_word_is_taken_once(kind, seed, beams, with_lm, data):
    """Texts, times and confidences, with takes in between, of stable words alone or of more."""
    (make, speech), frames = KINDS[kind], 150
    made = make(beams, lm=with_lm)
    state, taken, shown = made.start(0), [], []
    for number, row in enumerate(speech(seed, frames)):
        made.advance([state], row[None, None])
        words = made.words(state)
        now = [*taken, *words[: made.stable_words(state)]]
        assert now[: len(shown)] == shown
        shown = now
        assert state.has_text == bool(words)
        what = data.draw(st.sampled_from(["nothing"] * 3 + ["stable", "some", "all"])) if number % 4 == 0 else "nothing"
        if what == "some":
            count = data.draw(st.integers(0, len(words)))
            assert made.take(state, count) == words[:count]
            taken += words[:count]
        elif what != "nothing":
            count = made.stable_words(state) if what == "stable" else None
            taken += made.take(state, count)
        if what != "nothing":
            shown = [*taken, *made.words(state)[: made.stable_words(state)]]
    taken += made.take(state)
    assert not state.has_text
    assert made.words(state) == ()
    assert all(a.end_s <= b.start_s for a, b in pairwise(taken))
    assert all(w.end_s <= frames * FRAME_S and 0 <= w.confidence <= 1 for w in taken)
    assert kind == "pieces" or all(w.start_s < w.end_s for w in taken)


def test_an_ambiguous_first_word_is_committed_before_the_tree_is_full():
    """The first word stays ambiguous (`a` or `b`); the unambiguous text after it is longer than the tree.

    Frames keep one symbol each, so there is room for both hypotheses and they are not merged.
    """
    rows = np.concatenate([log_probs(spell("_a_ "), certainty=0.97), *[log_probs(spell("ab_ "), certainty=0.97)] * 400])
    rows[1, [LETTERS.index("a"), LETTERS.index("b")]] = np.log(0.48), np.log(0.4799)
    made = decoder(4, lm=False, weights=PLAIN, kept_share=0.9)
    state, first_stable = made.start(0), None
    for frame, row in enumerate(rows):
        made.advance([state], row[None, None])
        if first_stable is None and made.stable_words(state):
            first_stable = frame
    assert first_stable is not None
    assert 60 < first_stable < 600
    assert [w.text for w in made.take(state)] == ["a", *["ab"] * 400]


# agreement with the greedy decoder


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data(), skip=st.integers(0, 5), beams=st.sampled_from([1, 8]))
@settings(max_examples=100, deadline=None)
def test_clear_speech_gives_the_text_of_the_greedy_decoder(kind, data, skip, beams):
    """On clear frames text, times, confidence and counters agree."""
    if kind == "letters":
        rows, vocabulary = log_probs(data.draw(symbols_lists), certainty=0.999), LETTERS
    else:
        rows, vocabulary = log_probs_of(SYMBOLS, data.draw(piece_lists), certainty=0.999), tokens_of(SYMBOLS)
    beam, greedy = KINDS[kind][0](beams, lm=False, weights=PLAIN), GreedyDecoder(vocabulary, FRAME_S)
    one, other = beam.start(skip), greedy.start(skip)
    beam.advance([one], rows[None])
    greedy.advance([other], rows[None])
    for a, b in zip(beam.words(one), greedy.words(other), strict=True):
        assert (a.text, a.start_s, a.end_s) == (b.text, b.start_s, b.end_s)
        assert a.confidence == pytest.approx(b.confidence)
    assert (one.frames, one.silence_frames, one.has_text) == (other.frames, other.silence_frames, other.has_text)
    assert beam.stable_words(one) <= greedy.stable_words(other)
    if beams == 1:  # no other hypothesis: closed words are stable
        assert beam.stable_words(one) == greedy.stable_words(other)


def test_confidence_is_the_geometric_mean_of_each_letters_best_frame():
    rows = log_probs(spell("aab"), certainty=0.6)
    rows[1] = log_probs(spell("a"), certainty=0.9)[0]
    made = decoder(1, lm=False, weights=PLAIN)
    state = made.start(0)
    made.advance([state], rows[None])
    (word,) = made.words(state)
    assert word.text == "ab"
    assert word.confidence == pytest.approx((0.9 * 0.6) ** 0.5, rel=1e-5)


def test_revision_moves_only_with_the_words():
    made, state = decoded("a")
    before = state.revision
    made.advance([state], log_probs(spell("a___"))[None])
    assert state.revision == before
    made.advance([state], log_probs(spell("b"))[None])
    assert state.revision > before


def test_certain_blanks_change_only_the_count_of_frames():
    """Blanks of at least `KEPT_SHARE` use the fast path; slightly below, the same frames use the full search."""
    made, rows = decoder(), speech_like(3, 120)
    near = rows.copy()
    sure = np.exp(rows[:, 0]) >= KEPT_SHARE
    near[sure, 1:], near[sure, 0] = -np.inf, np.log(KEPT_SHARE - 1e-4)
    short, long = made.start(0), made.start(0)
    made.advance([short], rows[None])
    made.advance([long], near[None])
    assert 20 < sure.sum() < 100
    assert (short.frames, short.silence_frames, short.revision) == (long.frames, long.silence_frames, long.revision)
    ours, theirs = made.take(short), made.take(long)
    assert [(w.text, w.start_s, w.end_s) for w in ours] == [(w.text, w.start_s, w.end_s) for w in theirs]
    assert [w.confidence for w in ours] == pytest.approx([w.confidence for w in theirs])


# takes


def test_a_letter_that_continues_after_its_word_was_taken_is_not_written_again():
    made, state = decoded("_ab")
    assert [w.text for w in made.take(state)] == ["ab"]
    made.advance([state], log_probs(spell("bb"))[None])
    assert not state.has_text
    assert state.silence_frames == 0
    made.advance([state], log_probs(spell("_b"))[None])
    assert [w.text for w in made.take(state)] == ["b"]


def test_the_language_models_context_includes_taken_words():
    """`a` is likelier than `ba` by 1.8 at the start of a text and by 3.0 after `ab`; the frames favor `ba` by 2.4."""
    weights = DecodingWeights(lm_weight=1.0, word_bonus=0, unknown_cost=9, unknown_letter_cost=0)
    made = decoder(8, weights=weights)
    doubtful = log_probs(spell("___a_ _"), certainty=0.97)
    doubtful[1] = np.log([0.08, 0.01, 0.01, 0.89, 0.01])  # with or without a b before the a
    texts = []
    for before in ("", "ab_"):
        state = made.start(0)
        if before:
            made.advance([state], log_probs(spell(before))[None])
            assert [w.text for w in made.take(state)] == ["ab"]
        made.advance([state], doubtful[None])
        texts.append([w.text for w in made.words(state)])
    assert texts == [["ba"], ["a"]]


def test_taking_from_an_empty_segment_changes_nothing():
    made, state = decoded("____")
    before = state.revision
    assert made.take(state) == ()
    assert made.take(state, 0) == ()
    assert state.revision == before
