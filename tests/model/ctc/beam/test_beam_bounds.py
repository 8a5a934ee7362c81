"""Prefix beam search: bounds on time and memory, errors for unsupported arguments."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from model.ctc.beam import BeamDecoder
from model.ctc.bias import NO_BIAS, Bias
from model.ctc.search import layout as at
from model.ctc.search.layout import block_bytes
from model.ctc.search.saved_beam import Memory
from model.ctc.weights import DecodingWeights
from tests.support.decoding.beam_toys import FRAME_S, LETTERS, decoded, decoder, random_log_probs, seen, speech_like
from tests.support.decoding.ctc_symbols import log_probs, spell

seeds = st.integers(0, 2**32 - 1)


def test_memory_and_work_of_a_long_stream_do_not_grow():
    """Ten minutes of noise with words taken when stable: the tree always fits its block."""
    made, rows = decoder(16), speech_like(5, 15_000)
    state, open_words = made.start(0), 0
    for part in np.split(rows, 1_500):
        made.advance([state], part[None])
        made.take(state, made.stable_words(state))
        open_words = max(open_words, len(made.words(state)))
    assert state.frames == 15_000
    assert open_words < 60
    assert len(state.committed) == 0


@pytest.mark.parametrize("beams", [1, 4, 64])
def test_a_text_without_any_space_stays_bounded(beams):
    rows = random_log_probs(7, 3_000, len(LETTERS))
    rows[:, 1] = -np.inf
    made = decoder(beams)
    state = made.start(0)
    made.advance([state], rows[None])
    words = made.take(state)
    assert [len(w.text) for w in words] == [48]


def test_letters_beyond_the_longest_word_count_as_blank():
    """The last letter is repeated too, because the search would otherwise prefer texts that the frames contradict."""
    made, state = decoded("a_" * 60 + "____ab")
    assert [w.text for w in made.take(state)] == ["a" * 48]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("beams", [1, 8])
def test_frames_that_are_not_a_distribution_are_ignored(value, beams):
    made, state = decoded("_ab", beams)
    made.advance([state], np.full((1, 3, len(LETTERS)), value, np.float32))
    assert state.frames == 6
    made.advance([state], log_probs(spell("_b"))[None])
    assert [w.text for w in made.take(state)] == ["abb"]


@given(seeds, st.sampled_from([1, 4]), st.sampled_from([np.nan, np.inf, -np.inf, -1e30]), st.booleans())
@settings(max_examples=40, deadline=None)
def test_invalid_log_probs_affect_their_own_stream_for_a_short_time_only(seed, beams, value, with_lm):
    """After single invalid log-probabilities the stream stays valid, and later speech is recognized.

    A letter that was uncertain when the text was taken may still join the next word.
    """
    rows, made = speech_like(seed, 300), decoder(beams, lm=with_lm)
    rows[np.random.default_rng(seed).random(rows.shape) < 0.2] = value
    state = made.start(0)
    for part in np.split(rows, 30):
        made.advance([state], part[None])
        assert all(0 <= w.confidence <= 1 for w in made.words(state))
    made.take(state)
    made.advance([state], log_probs(spell("___ab___"), certainty=0.999)[None])
    assert made.take(state)[-1].text.endswith("ab")


def test_no_frames_and_no_streams_change_nothing():
    made, state = decoded("_ab")
    before = seen(made, state)
    made.advance([state], np.zeros((1, 0, len(LETTERS)), np.float32))
    made.advance([], np.zeros((0, 2, len(LETTERS)), np.float32))
    assert seen(made, state) == before


def test_a_vocabulary_of_the_blank_alone_gives_no_text():
    made = BeamDecoder(("",), FRAME_S)
    state = made.start(0)
    made.advance([state], np.zeros((1, 5, 1), np.float32))
    assert (made.take(state), state.frames, state.silence_frames) == ((), 5, 5)


@given(seeds, st.sampled_from([1, 8]))
@settings(max_examples=40, deadline=None)
def test_replacing_key_terms_and_restoring_them_changes_nothing(seed, beams):
    """Only while no word is committed: committed words are not rescored, and later start no key term."""
    first, other = Bias.of([("a b", 3.0), ("cab", 2.0)]), Bias.of([("ab", 2.0)])
    made, rows = decoder(beams), speech_like(seed, 30)
    state, never = made.start(0, first), made.start(0, first)
    made.advance([state, never], np.stack([rows[:10]] * 2))
    assume(not made.stable_words(state))
    made.set_bias(state, other)
    made.set_bias(state, first)
    assert seen(made, state) == seen(made, never)
    made.advance([state, never], np.stack([rows[10:]] * 2))
    assert [w.text for w in made.take(state)] == [w.text for w in made.take(never)]


def test_a_released_state_is_rejected():
    made, state = decoded("ab")
    made.words(state)  # cached in the state
    made.release(state)
    uses = [made.release, made.words, made.take, lambda s: made.take(s, 0), lambda s: made.set_bias(s, NO_BIAS)]
    for use in [*uses, lambda s: made.set_bias(s, Bias.of([("a", 1.0)]))]:
        with pytest.raises(ValueError, match="released"):
            use(state)
    with pytest.raises(ValueError, match="released"):
        made.advance([state], log_probs(spell("a"))[None])


@pytest.mark.parametrize("shape", [(1, 2, 4), (2, 2, 5), (2, 5)])
def test_log_probs_of_another_shape_are_rejected(shape):
    made, state = decoded("ab")
    with pytest.raises(ValueError, match="log-probs"):
        made.advance([state], np.zeros(shape, np.float32))


UNFIT = [(0, LETTERS), (1_025, LETTERS), (4, ()), (4, ("a", "b")), (4, ("", "ab")), (4, ("", ""))]


@pytest.mark.parametrize(("beams", "vocabulary"), UNFIT)
def test_unsupported_beams_and_vocabularies_are_rejected(beams, vocabulary):
    with pytest.raises(ValueError):
        BeamDecoder(vocabulary, FRAME_S, beams=beams)


@pytest.mark.parametrize(
    "options", [{"kept_share": 0}, {"kept_share": 1.1}, {"kept_share": np.nan}, {"kept_symbols": 0}]
)
def test_a_frame_keeps_at_least_one_symbol(options):
    with pytest.raises(ValueError, match=r"kept_symbols must be 1 to 63, .* kept_share above 0 and at most 1"):
        BeamDecoder(LETTERS, FRAME_S, **options)


@pytest.mark.parametrize("reach", [0, -1, np.nan])
def test_a_reach_that_would_drop_the_best_is_rejected(reach):
    with pytest.raises(ValueError, match="reach"):
        BeamDecoder(LETTERS, FRAME_S, reach=reach)


def test_a_stream_takes_a_known_amount_of_memory_in_proportion_to_its_beams():
    """Memory planning of the server depends on it: a quarter of a megabyte for 64 beams, 16 times that for 1,024."""
    assert block_bytes(64) < 240_000
    assert block_bytes(1_024) < 16 * 230_000


@given(seeds, st.sampled_from([4, 16]))
@settings(max_examples=20, deadline=None)
def test_hypotheses_beyond_the_reach_are_dropped(seed, beams):
    reach = 2.0
    made = decoder(beams, reach=reach)
    state = made.start(0)
    memory = Memory(state.block, beams)
    for row in speech_like(seed, 60):
        made.advance([state], row[None, None])
        if not memory.header[at.QUIET]:
            alive = memory.hypotheses[: memory.header[at.HYPOTHESES], at.NODE]
            scores = memory.hypotheses_f[: len(alive), at.TOTAL_P] + memory.nodes_f[alive, at.SCORE]
            assert scores.min() >= scores.max() - reach - math.log(beams)  # a merge may lift the best


@pytest.mark.parametrize("weights", [{"word_bonus": 1e300}, {"word_bonus": -1e300}, {"keyterm_boost": np.nan}])
def test_weights_that_are_not_finite_or_too_large_are_rejected(weights):
    with pytest.raises(ValueError, match=next(iter(weights))):
        DecodingWeights(**weights)


@pytest.mark.parametrize("bonus", [-9, 9])
def test_warming_up_writes_words_whether_or_not_there_are_any(bonus, monkeypatch):
    from model.ctc.search import kernel

    calls, write_best = [], kernel.write_best
    monkeypatch.setattr(kernel, "write_best", lambda *arguments: calls.append(arguments) or write_best(*arguments))
    decoder(weights=DecodingWeights(word_bonus=bonus)).warm_up()
    assert calls


def test_warming_up_leaves_nothing_to_compile():
    from model.ctc.search import kernel

    made = decoder()
    made.warm_up()
    entries = [kernel.start_stream, kernel.advance_streams, kernel.write_best, kernel.take_words]
    entries += [kernel.take_text, kernel.set_terms]
    before = [len(entry.signatures) for entry in entries]
    state = made.start(3, Bias.of([("ab", 1.0)]))
    made.advance([state], speech_like(2, 100)[None])
    made.words(state)
    made.take(state, 1)
    made.set_bias(state, NO_BIAS)
    made.take(state)
    assert [len(entry.signatures) for entry in entries] == before == [1] * len(entries)
