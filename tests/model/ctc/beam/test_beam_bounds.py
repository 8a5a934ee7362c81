"""Prefix beam search: bounds on time and memory, errors for unsupported arguments."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
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


UNFIT = [
    *(({"beams": beams}, "beams") for beams in (0, 1_025)),
    *(({"vocabulary": symbols}, None) for symbols in ((), ("a", "b"), ("", "ab"), ("", ""))),
    *(({"reach": reach}, "reach") for reach in (0, -1, np.nan)),
    *(({"kept_share": share}, r"kept_symbols must be 1 to 63, .* kept_share above 0") for share in (0, 1.1, np.nan)),
    ({"kept_symbols": 0}, "kept_symbols must be 1 to 63"),
    ({"kept_symbols": 64, "vocabulary": ["", *map(chr, range(0x4E00, 0x4E00 + 80))]}, "kept_symbols must be 1 to 63"),
]


@pytest.mark.parametrize(("options", "reason"), UNFIT)
def test_unsupported_settings_are_rejected(options, reason):
    with pytest.raises(ValueError, match=reason):
        BeamDecoder(**{"vocabulary": LETTERS, "frame_s": FRAME_S, **options})


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
