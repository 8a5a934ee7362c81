"""Prefix beam search: incremental == whole, alone == batched, to the bit; stable words stay; times, takes, releases."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
from beam_toys import FRAME_S, LETTERS, random_log_probs, speech_like, toy_lm
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_ctc import log_probs, spell, symbols_lists

from model.ctc import NO_BIAS, BeamDecoder, Bias, DecodingWeights, GreedyDecoder, best_path

seeds = st.integers(0, 2**32 - 1)
biases = st.sampled_from([NO_BIAS, Bias.of([("cab", 1.0)]), Bias.of([("a b", 2.0), ("bb", None), ("ab", -1.0)])])
plain = DecodingWeights(lm_weight=0, word_bonus=0, unknown_cost=0, unknown_letter_cost=0)


def decoder(beams=8, *, lm=True, weights=None):
    return BeamDecoder(LETTERS, FRAME_S, beams=beams, lm=toy_lm() if lm else None, weights=weights)


def heard(text, beams=8, **options):
    """A decoder without a language model, and a stream that has heard the symbols of `text`, _ for blank."""
    made = decoder(beams, lm=False, weights=plain)
    state = made.start(options.get("skip", 0))
    made.advance([state], log_probs(spell(text), certainty=options.get("certainty", 0.9))[None])
    return made, state


def seen(made, state):
    """All that a caller can see of a stream."""
    counts = state.frames, state.silence_frames, state.revision, state.has_text
    return made.words(state), made.stable_words(state), counts


# incremental, batched


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
        made.words(one_by_one)  # looking changes nothing
    assert made.take(one_by_one) == made.take(made_again(made, rows, bias))


def made_again(made, rows, bias):
    state = made.start(2, bias)
    made.advance([state], rows[None])
    return state


@given(st.lists(st.tuples(seeds, biases), min_size=2, max_size=6), st.data())
@settings(max_examples=40, deadline=None)
def test_streams_of_one_batch_do_not_touch_one_another(streams, data):
    """Each with its own key terms, some joining late: the same to the bit as alone."""
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


def test_other_forms_of_the_same_log_probs_give_the_same():
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
    """Texts, times and confidences; whatever is taken in between, of the stable words or of more."""
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


def test_a_word_that_stays_in_doubt_is_forced_before_the_memory_ends():
    """The first word is `a` or `b` to the end; what follows is beyond doubt, and longer than the tree."""
    rows = np.concatenate([log_probs(spell("_a_ "), certainty=0.97), *[log_probs(spell("ab_ "), certainty=0.97)] * 400])
    rows[1, [LETTERS.index("a"), LETTERS.index("b")]] = np.log(0.48), np.log(0.4799)
    made = decoder(4, lm=False, weights=plain)
    state, first_stable = made.start(0), None
    for frame, row in enumerate(rows):
        made.advance([state], row[None, None])
        if first_stable is None and made.stable_words(state):
            first_stable = frame
    assert first_stable is not None
    assert 60 < first_stable < 600
    assert [w.text for w in made.take(state)] == ["a", *["ab"] * 400]


# the same meaning as the greedy decoder's


@given(symbols_lists, st.integers(0, 5), st.sampled_from([1, 8]))
@settings(max_examples=100, deadline=None)
def test_clear_speech_reads_as_the_greedy_decoder_reads_it(symbols, skip, beams):
    """Text, times, confidence, counters: where there is no doubt the two agree."""
    rows = log_probs(symbols, certainty=0.999)
    beam, greedy = decoder(beams, lm=False, weights=plain), GreedyDecoder(LETTERS, FRAME_S)
    one, other = beam.start(skip), greedy.start(skip)
    beam.advance([one], rows[None])
    greedy.advance([other], rows[None])
    for a, b in zip(beam.words(one), greedy.words(other), strict=True):
        assert (a.text, a.start_s, a.end_s) == (b.text, b.start_s, b.end_s)
        assert a.confidence == pytest.approx(b.confidence)
    assert (one.frames, one.silence_frames, one.has_text) == (other.frames, other.silence_frames, other.has_text)
    assert beam.stable_words(one) <= greedy.stable_words(other)
    if beams == 1:  # nothing else is alive: what is closed is stable
        assert beam.stable_words(one) == greedy.stable_words(other)


def test_confidence_is_the_geometric_mean_of_each_letters_best_frame():
    rows = log_probs(spell("aab"), certainty=0.6)
    rows[1] = log_probs(spell("a"), certainty=0.9)[0]
    made = decoder(1, lm=False, weights=plain)
    state = made.start(0)
    made.advance([state], rows[None])
    (word,) = made.words(state)
    assert word.text == "ab"
    assert word.confidence == pytest.approx((0.9 * 0.6) ** 0.5, rel=1e-5)


def test_alignments_of_one_text_add_up():
    """`a` is the best in no frame, and yet the likeliest text: the beam knows, best path decoding does not."""
    rows = np.log(np.array([[[0.5, 1e-9, 0.4, 0.05, 0.05]] * 2], np.float32))
    made = decoder(8, lm=False, weights=plain)
    state = made.start(0)
    made.advance([state], rows)
    assert best_path(rows[0], LETTERS) == ""
    assert [w.text for w in made.take(state)] == ["a"]


def test_revision_moves_only_with_the_words():
    made, state = heard("a")
    before = state.revision
    made.advance([state], log_probs(spell("a___"))[None])
    assert state.revision == before
    made.advance([state], log_probs(spell("b"))[None])
    assert state.revision > before


def test_sure_blanks_change_nothing_but_the_count_of_frames():
    """The short cut is taken from a probability of 0.99; just below it the same frames go the long way."""
    made, rows = decoder(), speech_like(3, 120)
    near = rows.copy()
    sure = np.exp(rows[:, 0]) >= 0.99
    near[sure, 1:], near[sure, 0] = -np.inf, np.log(0.9899)
    short, long = made.start(0), made.start(0)
    made.advance([short], rows[None])
    made.advance([long], near[None])
    assert 20 < sure.sum() < 100
    assert (short.frames, short.silence_frames, short.revision) == (long.frames, long.silence_frames, long.revision)
    ours, theirs = made.take(short), made.take(long)
    assert [(w.text, w.start_s, w.end_s) for w in ours] == [(w.text, w.start_s, w.end_s) for w in theirs]
    assert [w.confidence for w in ours] == pytest.approx([w.confidence for w in theirs])


# takes


def test_a_letter_that_still_sounds_when_its_word_is_taken_is_not_written_again():
    made, state = heard("_ab")
    assert [w.text for w in made.take(state)] == ["ab"]
    made.advance([state], log_probs(spell("bb"))[None])
    assert not state.has_text
    assert state.silence_frames == 0
    made.advance([state], log_probs(spell("_b"))[None])
    assert [w.text for w in made.take(state)] == ["b"]


def test_the_language_model_remembers_what_was_taken():
    """`a` is likelier than `ba` by 1.8 at the start of a text and by 3.0 after `ab`; the sound is for `ba` by 2.4."""
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


def test_the_end_of_a_text_has_its_price():
    """`a` is likelier than `ba` by 1.8, with the end after it by 3.5; the sound is for `ba` by 2.4."""
    weights = DecodingWeights(lm_weight=1.0, word_bonus=0, unknown_cost=9, unknown_letter_cost=0)
    made = decoder(8, weights=weights)
    doubtful = log_probs(spell("___a_ _"), certainty=0.97)
    doubtful[1] = np.log([0.08, 0.01, 0.01, 0.89, 0.01])
    state = made.start(0)
    made.advance([state], doubtful[None])
    assert [w.text for w in made.words(state)] == ["ba"]
    assert [w.text for w in made.take(state)] == ["a"]


def test_taking_where_there_is_nothing_changes_nothing():
    made, state = heard("____")
    before = state.revision
    assert made.take(state) == ()
    assert made.take(state, 0) == ()
    assert state.revision == before


# bounds, misuse


def test_memory_and_work_of_a_long_stream_do_not_grow():
    """Ten minutes of noise, the words taken as they become stable: the tree never outgrows its block."""
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


def test_letters_beyond_the_longest_word_are_heard_as_blank():
    """The last letter once more as well, else the search is driven to texts that the frames are against."""
    made, state = heard("a_" * 60 + "____ab")
    assert [w.text for w in made.take(state)] == ["a" * 48]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("beams", [1, 8])
def test_frames_that_are_no_distribution_are_passed_over(value, beams):
    made, state = heard("_ab", beams)
    made.advance([state], np.full((1, 3, len(LETTERS)), value, np.float32))
    assert state.frames == 6
    made.advance([state], log_probs(spell("_b"))[None])
    assert [w.text for w in made.take(state)] == ["abb"]


@given(seeds, st.sampled_from([1, 4]), st.sampled_from([np.nan, np.inf, -np.inf, -1e30]), st.booleans())
@settings(max_examples=40, deadline=None)
def test_a_broken_model_harms_its_own_stream_at_most_for_a_while(seed, beams, value, with_lm):
    """Single values that are no log-probabilities, anywhere: the stream can be read, and what follows is heard.

    A letter that was doubtful when the text was taken may still join the word that follows.
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
    made, state = heard("_ab")
    before = seen(made, state)
    made.advance([state], np.zeros((1, 0, len(LETTERS)), np.float32))
    made.advance([], np.zeros((0, 2, len(LETTERS)), np.float32))
    assert seen(made, state) == before


def test_a_vocabulary_of_the_blank_alone_hears_nothing():
    made = BeamDecoder(("",), FRAME_S)
    state = made.start(0)
    made.advance([state], np.zeros((1, 5, 1), np.float32))
    assert (made.take(state), state.frames, state.silence_frames) == ((), 5, 5)


@given(seeds, st.sampled_from([1, 8]))
@settings(max_examples=40, deadline=None)
def test_other_key_terms_in_the_middle_of_one_and_back_again_change_nothing(seed, beams):
    """As long as no word is committed: what is committed is not judged again, and begins no key term afterwards."""
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


def test_a_released_state_is_refused():
    made, state = heard("ab")
    made.words(state)  # which are remembered
    made.release(state)
    uses = [made.release, made.words, made.take, lambda s: made.take(s, 0), lambda s: made.set_bias(s, NO_BIAS)]
    for use in [*uses, lambda s: made.set_bias(s, Bias.of([("a", 1.0)]))]:
        with pytest.raises(ValueError, match="released"):
            use(state)
    with pytest.raises(ValueError, match="released"):
        made.advance([state], log_probs(spell("a"))[None])


@pytest.mark.parametrize("shape", [(1, 2, 4), (2, 2, 5), (2, 5)])
def test_log_probs_of_another_shape_are_refused(shape):
    made, state = heard("ab")
    with pytest.raises(ValueError, match="log-probs"):
        made.advance([state], np.zeros(shape, np.float32))


UNFIT = [(0, LETTERS), (65, LETTERS), (4, ()), (4, ("a", "b")), (4, ("", *"x" * 63)), (4, ("", "ab")), (4, ("", ""))]


@pytest.mark.parametrize(("beams", "vocabulary"), UNFIT)
def test_what_cannot_be_searched_is_refused(beams, vocabulary):
    with pytest.raises(ValueError):
        BeamDecoder(vocabulary, FRAME_S, beams=beams)


@pytest.mark.parametrize(
    "options", [{"kept_share": 0}, {"kept_share": 1.1}, {"kept_share": np.nan}, {"kept_symbols": 0}]
)
def test_a_frame_keeps_something(options):
    with pytest.raises(ValueError, match="keep"):
        BeamDecoder(LETTERS, FRAME_S, **options)


@pytest.mark.parametrize("weights", [{"word_bonus": 1e300}, {"word_bonus": -1e300}, {"keyterm_boost": np.nan}])
def test_weights_that_no_sum_can_hold_are_refused(weights):
    with pytest.raises(ValueError, match=next(iter(weights))):
        DecodingWeights(**weights)


@pytest.mark.parametrize("bonus", [-9, 9])
def test_warming_up_writes_words_whether_or_not_there_are_any(bonus, monkeypatch):
    from model.ctc import kernel

    calls, write_best = [], kernel.write_best
    monkeypatch.setattr(kernel, "write_best", lambda *arguments: calls.append(arguments) or write_best(*arguments))
    decoder(weights=DecodingWeights(word_bonus=bonus)).warm_up()
    assert calls


def test_warming_up_leaves_nothing_to_compile():
    from model.ctc import kernel

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
