"""Prefix beam search: bit-identical for any split and batch; stable words, times, takes."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.ctc.beam import KEPT_SHARE
from model.ctc.bias import NO_BIAS, Bias
from model.ctc.greedy import GreedyDecoder, best_path
from model.ctc.weights import DecodingWeights
from tests.support.decoding.beam_toys import FRAME_S, LETTERS, PLAIN, decoded, decoder, seen, speech_like
from tests.support.decoding.ctc_symbols import log_probs, spell, symbols_lists

seeds = st.integers(0, 2**32 - 1)
biases = st.sampled_from([NO_BIAS, Bias.of([("cab", 1.0)]), Bias.of([("a b", 2.0), ("bb", None), ("ab", -1.0)])])


@given(seeds, st.integers(1, 200), st.sampled_from([1, 2, 8, 33]), biases, st.data())
@settings(max_examples=60, deadline=None)
def test_any_split_of_the_frames_gives_the_same_to_the_bit(seed, frames, beams, bias, data):
    made, rows = decoder(beams), speech_like(seed, frames)
    whole, split = made.start(2, bias), made.start(2, bias)
    made.advance([whole], rows[None])
    cuts = sorted(data.draw(st.lists(st.integers(0, frames), max_size=12)))
    for part in np.split(rows, cuts):
        made.advance([split], part[None])
    assert seen(made, split) == seen(made, whole)
    assert made.take(split) == made.take(whole)
    one_by_one = made.start(2, bias)
    for row in rows:
        made.advance([one_by_one], row[None, None])
        made.words(one_by_one)  # reading words does not change the state
    assert made.take(one_by_one) == made.take(made_again(made, rows, bias))


def made_again(made, rows, bias):
    state = made.start(2, bias)
    made.advance([state], rows[None])
    return state


@given(st.lists(st.tuples(seeds, biases), min_size=2, max_size=6), st.data())
@settings(max_examples=40, deadline=None)
def test_streams_of_one_batch_do_not_affect_one_another(streams, data):
    """Each stream with its own key terms, some starting late, is bit-identical to the stream alone."""
    made, frames = decoder(), 60
    rows = [speech_like(seed, frames) for seed, _ in streams]
    states = [made.start(0, bias) for _, bias in streams]
    fed = [0] * len(streams)
    while any(f < frames for f in fed):
        open_rows = [i for i, f in enumerate(fed) if f < frames]
        picked = data.draw(st.lists(st.sampled_from(open_rows), min_size=1, unique=True))
        count = min(data.draw(st.integers(1, 20)), *(frames - fed[i] for i in picked))
        made.advance([states[i] for i in picked], np.stack([rows[i][fed[i] : fed[i] + count] for i in picked]))
        for i in picked:
            fed[i] += count
    for (_, bias), row, state in zip(streams, rows, states, strict=True):
        alone = made.start(0, bias)
        made.advance([alone], row[None])
        assert seen(made, state) == seen(made, alone)


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


@given(seeds, st.sampled_from([1, 4, 16]), st.booleans(), st.data())
@settings(max_examples=60, deadline=None)
def test_stable_words_never_change_and_every_word_is_taken_once(seed, beams, with_lm, data):
    """Texts, times and confidences, with takes in between, of stable words alone or of more."""
    made, frames = decoder(beams, lm=with_lm), 150
    state, taken, shown = made.start(0), [], []
    for row in speech_like(seed, frames):
        made.advance([state], row[None, None])
        words = made.words(state)
        now = [*taken, *words[: made.stable_words(state)]]
        assert now[: len(shown)] == shown
        shown = now
        assert state.has_text == bool(words)
        what = data.draw(st.sampled_from(["nothing"] * 8 + ["stable", "some", "all"]))
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
    assert all(w.start_s < w.end_s <= frames * FRAME_S and 0 <= w.confidence <= 1 for w in taken)


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


@given(symbols_lists, st.integers(0, 5), st.sampled_from([1, 8]))
@settings(max_examples=100, deadline=None)
def test_clear_speech_gives_the_text_of_the_greedy_decoder(symbols, skip, beams):
    """On clear frames text, times, confidence and counters agree."""
    rows = log_probs(symbols, certainty=0.999)
    beam, greedy = decoder(beams, lm=False, weights=PLAIN), GreedyDecoder(LETTERS, FRAME_S)
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


def test_the_probabilities_of_all_alignments_of_a_text_are_summed():
    """`a` is the likeliest text but not the best symbol of any frame: the beam finds it, a best path does not."""
    rows = np.log(np.array([[[0.5, 1e-9, 0.4, 0.05, 0.05]] * 2], np.float32))
    made = decoder(8, lm=False, weights=PLAIN)
    state = made.start(0)
    made.advance([state], rows)
    assert best_path(rows[0], LETTERS) == ""
    assert [w.text for w in made.take(state)] == ["a"]


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


def test_taking_all_words_scores_the_end_of_the_sentence():
    """`a` is likelier than `ba` by 1.8, with the end after it by 3.5; the frames favor `ba` by 2.4."""
    weights = DecodingWeights(lm_weight=1.0, word_bonus=0, unknown_cost=9, unknown_letter_cost=0)
    made = decoder(8, weights=weights)
    doubtful = log_probs(spell("___a_ _"), certainty=0.97)
    doubtful[1] = np.log([0.08, 0.01, 0.01, 0.89, 0.01])
    state = made.start(0)
    made.advance([state], doubtful[None])
    assert [w.text for w in made.words(state)] == ["ba"]
    assert [w.text for w in made.take(state)] == ["a"]


def test_taking_from_an_empty_segment_changes_nothing():
    made, state = decoded("____")
    before = state.revision
    assert made.take(state) == ()
    assert made.take(state, 0) == ()
    assert state.revision == before
