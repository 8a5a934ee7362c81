"""Second pass over an open text: stable words stay, the rest is that of a wide search, on any thread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.ctc.beam import BeamDecoder
from model.ctc.bias import NO_BIAS, Bias
from model.ctc.two_pass import CONTEXT_S, KEPT_S, Reader, SavedTwoPass, TwoPassDecoder, TwoPassState
from model.ctc.words import FrameAudio, Word
from model.lm.language_model import LanguageModel
from tests.support.decoding.beam_toys import FRAME_S, LETTERS, TOY_ARPA, decoder, random_log_probs, speech_like, toy_lm
from tests.support.decoding.ctc_symbols import log_probs, spell
from tests.support.decoding.phone_toys import OUTPUTS, phone_decoder
from tests.support.decoding.piece_toys import PIECES, tokens_of

seeds = st.integers(0, 2**32 - 1)


def both(first: int = 2, second: int = 32, *, lm: bool = True) -> TwoPassDecoder:
    return TwoPassDecoder(decoder(first, lm=lm), decoder(second, lm=lm))


def decode(made: TwoPassDecoder, rows: np.ndarray, step: int = 2, bias: Bias = NO_BIAS) -> TwoPassState:
    state = made.start(3, bias)
    for first in range(0, len(rows), step):
        made.advance([state], rows[None, first : first + step])
    return state


def searched(made: TwoPassDecoder, state: TwoPassState) -> tuple[Word, ...] | None:
    again = made.second_pass(state)
    return None if again is None else again()


def texts(words: tuple[Word, ...] | None) -> list[str]:
    return [word.text for word in words or ()]


@settings(max_examples=60, deadline=None)
@given(
    seed=seeds,
    frames=st.integers(10, 300),
    first=st.sampled_from((1, 2, 4)),
    lm=st.booleans(),
    takes=st.lists(st.sampled_from((None, 1, 2)), max_size=3),
)
def test_stable_words_never_change(seed: int, frames: int, first: int, lm: bool, takes: list[int | None]) -> None:
    """A second pass never contradicts a word that the first pass has reported as stable."""
    made, rows = both(first, lm=lm), speech_like(seed, frames)
    state, end_s = made.start(0), 0.0
    for number, begin in enumerate(range(0, frames, 4)):
        made.advance([state], rows[None, begin : begin + 4])
        words = searched(made, state)
        if words is not None:
            stable = made.stable_words(state)
            assert words[:stable] == made.words(state)[:stable]
            assert all(word.text for word in words)
            ends = [end_s, *(time for word in words for time in (word.start_s, word.end_s))]
            assert ends == sorted(ends), "words overlap one another or earlier ones"
            assert ends[-1] <= state.frames * FRAME_S
        if takes and number % 7 == 6:
            taken = made.take(state, takes[number // 7 % len(takes)])
            end_s = taken[-1].end_s if taken else end_s


@settings(max_examples=40, deadline=None)
@given(seed=seeds, frames=st.integers(10, 160), first=st.sampled_from((1, 3)), terms=st.booleans())
def test_stable_words_of_a_search_over_phones_never_change(seed: int, frames: int, first: int, terms: bool) -> None:
    made, rows = TwoPassDecoder(phone_decoder(first), phone_decoder(24)), speech_like(seed, frames, OUTPUTS)
    state = made.start(0, Bias.of([("kay", 1.5)]) if terms else NO_BIAS)
    for begin in range(0, frames, 4):
        made.advance([state], rows[None, begin : begin + 4])
        words = searched(made, state)
        if words is not None:
            stable = made.stable_words(state)
            assert words[:stable] == made.words(state)[:stable]
            assert {word.text for word in words} <= {"a", "ab", "ba", "cab", "kay"}
        if begin % 28 == 24:
            made.take(state, 1)


@settings(max_examples=40, deadline=None)
@given(seed=seeds, frames=st.integers(10, 120), first=st.sampled_from((1, 3)))
def test_stable_words_of_a_model_of_pieces_never_change(seed: int, frames: int, first: int) -> None:
    """A word may end in the piece that begins the next one. The result at the end is that of a wide search."""
    tokens, rows = tokens_of(PIECES), speech_like(seed, frames, len(PIECES))
    made = TwoPassDecoder(*(BeamDecoder(tokens, FRAME_S, beams=beams) for beams in (first, 24)))
    state, wide = made.start(0), BeamDecoder(tokens, FRAME_S, beams=24)
    alone = wide.start(0)
    wide.advance([alone], rows[None])
    for begin in range(0, frames, 5):
        made.advance([state], rows[None, begin : begin + 5])
        words, stable = searched(made, state), made.stable_words(state)
        assert words is None or words[:stable] == made.words(state)[:stable]
    if words is not None and not stable:
        assert words == wide.take(alone)


@settings(max_examples=40, deadline=None)
@given(seed=seeds, frames=st.integers(5, 40), beams=st.sampled_from((8, 32)))
def test_without_stable_words_it_gives_the_result_of_the_wide_search_alone(seed: int, frames: int, beams: int) -> None:
    made, rows = both(4, beams), speech_like(seed, frames)
    state = decode(made, rows)
    wide = decoder(beams)
    alone = wide.start(3)
    wide.advance([alone], rows[None])
    words = searched(made, state)
    if words is not None and not made.stable_words(state):
        assert words == wide.take(alone)


@settings(max_examples=40, deadline=None)
@given(seed=seeds, step=st.integers(1, 90), other=seeds, moves=st.sets(st.integers(0, 20)))
def test_it_depends_only_on_the_frames_of_the_stream(seed: int, step: int, other: int, moves: set[int]) -> None:
    """It does not depend on their division, on other streams, or on where the state was saved."""
    made, rows = both(), speech_like(seed, 180)
    whole = decode(made, rows, len(rows))
    state, neighbour = made.start(3), made.start(0)
    for number, first in enumerate(range(0, len(rows), step)):
        part = rows[first : first + step]
        made.advance([neighbour, state], np.stack([speech_like(other, len(part)), part]))
        if number in moves:
            state = made.load(made.save(state))
    assert searched(made, state) == searched(made, whole)
    assert made.take(state) == made.take(whole)


def test_any_thread_may_run_it_while_the_stream_continues_and_ends() -> None:
    made, rows = both(4, 64), speech_like(3, 400)
    state = decode(made, rows[:200])
    expected, again = searched(made, state), made.second_pass(state)
    assert again is not None
    with ThreadPoolExecutor(2) as threads:
        running = [threads.submit(again) for _ in range(8)]
        made.take(state)
        made.advance([state], rows[None, 200:])
        made.release(state)
        assert [one.result() for one in running] == [expected] * 8


def test_a_letter_that_continues_after_a_cut_is_not_written_again() -> None:
    made = both(4, 16, lm=False)
    state = decode(made, log_probs(spell("___abc")))
    assert texts(made.take(state)) == ["abc"]
    made.advance([state], log_probs(spell("cc_b_"))[None])
    assert texts(searched(made, state)) == ["b"]


def test_key_terms_count_in_the_second_search_too() -> None:
    rows = log_probs(spell("____a_b_"), certainty=0.4)
    plain, biased = both(2, 16), both(2, 16)
    term = Bias.of([("cab", 12.0)])
    assert texts(searched(biased, decode(biased, rows, bias=term))) != texts(searched(plain, decode(plain, rows)))


def test_without_open_words_there_is_nothing_to_search() -> None:
    made = both(1, 8, lm=False)
    state = decode(made, log_probs(spell("______")))
    assert made.second_pass(state) is None
    made.advance([state], log_probs(spell("ab "))[None])
    assert (made.stable_words(state), made.second_pass(state)) == (1, None)


def test_frames_of_stable_words_and_those_older_than_a_minute_are_dropped() -> None:
    made = both(1, 8, lm=False)
    state = decode(made, log_probs(spell("___ab_" * 3)))
    held = len(state.kept.counts)
    made.advance([state], log_probs(spell(" a"))[None])
    assert len(state.kept.counts) < held
    longest = round(KEPT_S / FRAME_S)
    for seed in range(12):
        made.advance([state], random_log_probs(seed, 300, len(LETTERS))[None])
        assert len(state.kept.counts) <= longest
    silent = decode(made, log_probs(spell("_" * 2 * longest), certainty=0.999), 100)
    assert silent.kept.size_bytes == longest


def test_a_text_that_began_before_all_kept_frames_is_not_searched_again() -> None:
    made = both(1, 8, lm=False)
    state = decode(made, log_probs(spell("___a_")))
    assert made.second_pass(state) is not None
    blank = log_probs(spell("_" * 100), certainty=0.999)
    for _ in range(round(KEPT_S / FRAME_S) // 100 + 1):
        made.advance([state], blank[None])
    assert (texts(made.words(state)), made.second_pass(state)) == (["a"], None)


def test_the_second_search_knows_its_own_language_models_context(tmp_path: Path) -> None:
    """After taken and stable words its context is that of a model that has read them all."""
    path = tmp_path / "other.arpa"
    path.write_text(TOY_ARPA.replace("-0.5\tab a ba", "-0.01\tab a ba"))
    other = LanguageModel.load(path, cache_dirs=[tmp_path])
    made = TwoPassDecoder(decoder(1), BeamDecoder(LETTERS, FRAME_S, beams=8, lm=other))
    state = decode(made, log_probs(spell("___ab ")))
    assert texts(made.take(state, 1)) == ["ab"]
    made.advance([state], log_probs(spell("_a _"))[None])
    assert made.stable_words(state) == 1
    made.advance([state], log_probs(spell("b_a_"))[None])
    again = made.second_pass(made.load(made.save(state)))
    assert again is not None
    text: Any = again.args[0]  # type: ignore[attr-defined]
    assert text.lm_state == other.state_after(["ab", "a"]) != other.state_after(["a"], bos=False)
    assert toy_lm().digest != other.digest


@pytest.mark.parametrize(
    "changed",
    [{"version": 0}, {"begin": 1}, {"counts": b"\x01"}, {"symbols": b"\xff\xff"}, {"first": b""}, {"values": b"\0"}],
)
def test_damaged_states_are_rejected(changed: dict[str, Any]) -> None:
    made = both(4, 8)
    saved = msgspec.msgpack.decode(made.save(decode(made, speech_like(1, 50))), type=SavedTwoPass)
    broken = msgspec.structs.replace(saved, **changed)
    with pytest.raises((ValueError, msgspec.MsgspecError)):
        made.load(msgspec.msgpack.encode(broken))


def test_its_digest_names_both_searches() -> None:
    digests = {both(2, 8).digest, both(2, 16).digest, both(4, 8).digest, decoder(2).digest}
    assert len(digests) == 4
    assert both(2, 8).digest == both(2, 8).digest


def test_searches_that_read_other_frames_are_rejected() -> None:
    with pytest.raises(ValueError, match="same symbols, frame duration"):
        TwoPassDecoder(decoder(2), BeamDecoder(LETTERS, FRAME_S, beams=8, kept_share=0.9))


class Reads:
    """Reader that outputs the symbols of a text for any audio, and records its input."""

    def __init__(self, text: str, delay: int) -> None:
        self.text, self.delay = text, delay
        self.given: list[np.ndarray] = []

    def __call__(self, pcm: np.ndarray) -> np.ndarray:
        assert len(pcm) % (STEP * SAMPLES) == 0, "whole steps"
        self.given.append(pcm)
        frames = len(pcm) // SAMPLES - self.delay
        return log_probs(spell(self.text[-frames:].rjust(frames, "_")), certainty=0.99)


SAMPLES, STEP = 640, 2  # of a frame; frames of a step


def rereading(text: str, delay: int = 3) -> tuple[TwoPassDecoder, Reads]:
    reads = Reads(text, delay)
    return TwoPassDecoder(decoder(8, lm=False), decoder(32, lm=False), Reader(reads, SAMPLES, STEP, "reads")), reads


def test_with_a_reader_the_whole_segment_is_searched_again() -> None:
    """Stable words are replaced by those of both networks too; the stream itself continues with its own words."""
    said, read = "__ab__ _ac__ _ab_ ", "__ab__ _ab__ _ab_ "
    made, reads = rereading(read, delay=4)
    rows = log_probs(spell(said), certainty=0.97)
    rows[said.index("c")] = np.log([0.01, 0.01, 0.01, 0.27, 0.7])
    state = made.start(0)
    made.advance([state], rows[None])
    pcm = np.arange((len(rows) + reads.delay) * SAMPLES).astype(np.int16)
    again = made.second_pass(state, FrameAudio(pcm, 0))
    assert again is not None
    assert made.stable_words(state) >= 2
    assert texts(made.take(state)) == ["ab", "ac", "ab"]
    assert texts(again()) == ["ab", "ab", "ab"]
    assert np.array_equal(reads.given[0], pcm)


@pytest.mark.parametrize("before", [93, 94])
def test_a_reader_is_given_the_segment_and_the_time_before_it_in_whole_steps(before: int) -> None:
    made, reads = rereading("_" * (before % 2) + "__ba_")
    state = made.start(0)
    made.advance([state], log_probs(spell("__ab__" + before * "_"), certainty=0.9)[None])
    made.take(state)
    made.advance([state], log_probs(spell("__ba_" + "_" * (before % 2)), certainty=0.9)[None])
    first, end = 20, state.frames + reads.delay
    assert (end - first) % STEP == 0
    pcm = np.repeat(np.arange(first, end), SAMPLES).astype(np.int16)
    again = made.second_pass(state, FrameAudio(pcm, first))
    assert again is not None
    assert texts(again()) == ["ba"]
    begins = 6 + before - round(CONTEXT_S / FRAME_S)
    assert reads.given[0][0] == begins - begins % STEP
    assert reads.given[0][-1] == pcm[-1]


def test_for_frames_before_the_audio_the_stream_itself_counts() -> None:
    made, reads = rereading("_")
    state = made.start(0)
    made.advance([state], log_probs(spell("_ab_ _ba_"), certainty=0.9)[None])
    again = made.second_pass(state, FrameAudio(np.zeros((3 + reads.delay) * SAMPLES, np.int16), 6))
    assert again is not None
    assert texts(again())[0] == "ab"


def test_without_audio_the_reader_is_not_used() -> None:
    made, reads = rereading("__________")
    state = made.start(0)
    made.advance([state], log_probs(spell("_ab_ _ba_"), certainty=0.9)[None])
    again = made.second_pass(state)
    assert again is not None
    assert texts(again()) == ["ab", "ba"]
    assert not reads.given


def test_its_digest_is_another_one() -> None:
    made, _ = rereading("")
    assert made.digest != TwoPassDecoder(made.first, made.second).digest
