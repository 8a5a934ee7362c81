"""Second pass over an open text: stable words stay, the rest is that of a wide search, on any thread."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.ctc.beam import BeamDecoder
from model.ctc.bias import NO_BIAS, Bias
from model.ctc.interface import FrameAudio, SecondPass
from model.ctc.two_pass import CONTEXT_S, KEPT_S, Reader, TwoPassDecoder, TwoPassState
from model.ctc.words import Word, joined
from model.lm.language_model import LanguageModel
from tests.support.decoding.beam_toys import FRAME_S, LETTERS, TOY_ARPA, decoder, random_log_probs, speech_like, toy_lm
from tests.support.decoding.ctc_symbols import log_probs, spell

seeds = st.integers(0, 2**32 - 1)


SAMPLES, STEP = 640, 2  # of a frame; frames of a step


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


def rereading(text: str, delay: int = 3) -> tuple[TwoPassDecoder, Reads]:
    reads = Reads(text, delay)
    return TwoPassDecoder(decoder(8, lm=False), decoder(32, lm=False), Reader(reads, SAMPLES, STEP, "reads")), reads


def both(first: int = 2, second: int = 32, *, lm: bool = True) -> TwoPassDecoder:
    return TwoPassDecoder(decoder(first, lm=lm), decoder(second, lm=lm))


def decode(made: TwoPassDecoder, rows: np.ndarray, step: int = 2, bias: Bias = NO_BIAS) -> TwoPassState:
    state = made.start(3, bias)
    for first in range(0, len(rows), step):
        made.advance([state], rows[None, first : first + step])
    return state


def second_pass(made: TwoPassDecoder, state: TwoPassState) -> SecondPass | None:
    """The second pass over the kept frames alone."""
    return made.second_pass(state, None)


def searched(made: TwoPassDecoder, state: TwoPassState) -> tuple[Word, ...] | None:
    again = second_pass(made, state)
    return None if again is None else again()


def texts(words: tuple[Word, ...] | None) -> list[str]:
    return [word.text for word in words or ()]


@settings(max_examples=40, deadline=None)
@given(seed=seeds, frames=st.integers(5, 40), beams=st.sampled_from((8, 32)))
def test_where_nothing_was_taken_the_result_is_that_of_the_wide_search(seed: int, frames: int, beams: int) -> None:
    made, rows = both(4, beams), speech_like(seed, frames)
    state = decode(made, rows)
    wide = decoder(beams)
    alone = wide.start(3)
    wide.advance([alone], rows[None])
    words = searched(made, state)
    if words is not None:
        assert words == wide.take(alone)


@settings(max_examples=40, deadline=None)
@given(seed=seeds, step=st.integers(1, 90), other=seeds)
def test_it_depends_only_on_the_frames_of_the_stream(seed: int, step: int, other: int) -> None:
    """It does not depend on their division or on other streams."""
    made, rows = both(), speech_like(seed, 180)
    whole = decode(made, rows, len(rows))
    state, neighbor = made.start(3), made.start(0)
    for first in range(0, len(rows), step):
        part = rows[first : first + step]
        made.advance([neighbor, state], np.stack([speech_like(other, len(part)), part]))
    assert searched(made, state) == searched(made, whole)
    assert made.take(state) == made.take(whole)


def test_any_thread_may_run_it_while_the_stream_continues_and_ends() -> None:
    made, rows = both(4, 64), speech_like(3, 400)
    state = decode(made, rows[:200])
    expected, again = searched(made, state), second_pass(made, state)
    assert again is not None
    with ThreadPoolExecutor(2) as threads:
        running = [threads.submit(again) for _ in range(8)]
        made.take(state)
        made.advance([state], rows[None, 200:])
        made.release(state)
        assert [one.result() for one in running] == [expected] * 8


def test_key_terms_count_in_the_second_search_too() -> None:
    rows = log_probs(spell("____a_b_"), certainty=0.4)
    plain, biased = both(2, 16), both(2, 16)
    term = Bias.of([("cab", 12.0)])
    assert texts(searched(biased, decode(biased, rows, bias=term))) != texts(searched(plain, decode(plain, rows)))


@settings(max_examples=20, deadline=None)
@given(seed=seeds, frames=st.integers(5, 40), more=st.integers(1, 20))
def test_a_copy_and_its_original_are_independent(seed: int, frames: int, more: int) -> None:
    made, rows = both(4, 32), speech_like(seed, frames + more)
    state, alone = decode(made, rows[:frames]), decode(made, rows)
    twin = made.copy(state)
    made.advance([state], rows[None, :1])
    made.take(state)
    made.release(state)
    for number in range(frames, frames + more):
        made.advance([twin], rows[None, number : number + 1])
    assert made.words(twin) == made.words(alone)
    assert searched(made, twin) == searched(made, alone)


@settings(max_examples=20, deadline=None)
@given(seed=seeds, frames=st.integers(0, 40), more=st.integers(1, 20), taken=st.sampled_from([None, 0, 1]))
def test_a_saved_state_continues_as_the_original(seed: int, frames: int, more: int, taken: int | None) -> None:
    made, rows = both(4, 32), speech_like(seed, frames + more)
    term = Bias.of([("cab", 12.0)])
    state = decode(made, rows[:frames], bias=term)
    if taken is None or taken <= len(made.words(state)):
        made.take(state, taken)
    again = made.load(made.save(state), term)
    for one in (state, again):
        made.advance([one], rows[None, frames:])
    assert made.words(again) == made.words(state)
    assert searched(made, again) == searched(made, state)
    assert made.take(again) == made.take(state)


def test_damaged_bytes_of_a_state_are_refused() -> None:
    made = both(4, 32)
    saved = made.save(decode(made, speech_like(1, 40)))
    with pytest.raises(ValueError, match="damaged"):
        made.load(msgspec.msgpack.encode([*msgspec.msgpack.decode(saved)[:3], b"", *msgspec.msgpack.decode(saved)[4:]]))
    with pytest.raises(ValueError, match=r"\w"):
        made.load(saved[:-4])


def test_without_words_there_is_nothing_to_search() -> None:
    made = both(1, 8, lm=False)
    state = decode(made, log_probs(spell("______")))
    assert second_pass(made, state) is None
    made.advance([state], log_probs(spell("ab "))[None])
    made.take(state)
    assert second_pass(made, state) is None


def test_frames_of_taken_words_and_those_older_than_a_minute_are_dropped() -> None:
    made = both(1, 8, lm=False)
    state = decode(made, log_probs(spell("___ab_" * 3 + " a")))
    held = len(state.kept.counts)
    made.take(state, 1)
    assert len(state.kept.counts) < held
    longest = round(KEPT_S / FRAME_S)
    for seed in range(12):
        made.advance([state], random_log_probs(seed, 300, len(LETTERS))[None])
        assert len(state.kept.counts) <= longest
    silent = decode(made, log_probs(spell("_" * 2 * longest), certainty=0.999), 100)
    assert (len(silent.kept.counts), silent.kept.symbols) == (longest, b"")


def test_a_text_that_began_before_all_kept_frames_is_not_searched_again() -> None:
    made = both(1, 8, lm=False)
    state = decode(made, log_probs(spell("___a_")))
    assert second_pass(made, state) is not None
    blank = log_probs(spell("_" * 100), certainty=0.999)
    for _ in range(round(KEPT_S / FRAME_S) // 100 + 1):
        made.advance([state], blank[None])
    assert (texts(made.words(state)), second_pass(made, state)) == (["a"], None)


def test_the_second_search_knows_its_own_language_models_context(tmp_path: Path) -> None:
    """After taken words its context is that of a model that has read them all."""
    path = tmp_path / "other.arpa"
    path.write_text(TOY_ARPA.replace("-0.5\tab a ba", "-0.01\tab a ba"))
    other = LanguageModel.load(path, cache_dirs=[tmp_path])
    made = TwoPassDecoder(decoder(1), BeamDecoder(LETTERS, FRAME_S, beams=8, lm=other))
    state = decode(made, log_probs(spell("___ab ")))
    assert texts(made.take(state, 1)) == ["ab"]
    made.advance([state], log_probs(spell("_a _"))[None])
    assert texts(made.take(state, 1)) == ["a"]
    made.advance([state], log_probs(spell("b_a_"))[None])
    again = second_pass(made, state)
    assert again is not None
    text: Any = again.args[0]  # type: ignore[attr-defined]
    assert text.lm_state == other.state_after(["ab", "a"]) != other.state_after(["a"], bos=False)
    assert toy_lm().digest != other.digest


def test_its_digest_names_both_searches_and_the_reader() -> None:
    reader = Reader(Reads("", 0), SAMPLES, STEP, "one")
    readers = [TwoPassDecoder(decoder(2), decoder(8), replace(reader, digest=digest)) for digest in ("one", "two")]
    others = [both(2, 8), both(2, 16), both(4, 8), decoder(2)]
    assert len({made.digest for made in (*readers, *others)}) == 6
    assert both(2, 8).digest == both(2, 8).digest


def test_searches_that_read_other_frames_are_rejected() -> None:
    with pytest.raises(ValueError, match="same symbols, frame duration"):
        TwoPassDecoder(decoder(2), BeamDecoder(LETTERS, FRAME_S, beams=8, kept_share=0.9))


def test_only_a_reader_needs_audio() -> None:
    made, reads = rereading("")
    assert made.reads_audio
    assert not both().reads_audio
    made.warm_up()
    assert [len(pcm) for pcm in reads.given] == [STEP * SAMPLES]
    both().warm_up()


@pytest.mark.parametrize("grammar", [False, True])
def test_the_whole_segment_is_searched_again_over_the_readers_outputs(grammar: bool) -> None:
    """Stable words are replaced too; the stream itself continues with its own words."""
    said, read = "__ab__ _ac__ _ab_ ", "__ab__ _ab__ _ab_ "
    made, reads = rereading(read, delay=4)
    made = made.over(decoder(16, lm=False)) if grammar else made
    rows = log_probs(spell(said), certainty=0.999)
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


def test_without_the_audio_of_its_first_word_a_segment_is_not_read_again() -> None:
    made, reads = rereading("_")
    state = made.start(0)
    made.advance([state], log_probs(spell("_ab_ _ba_"), certainty=0.9)[None])
    assert made.second_pass(state, FrameAudio(np.zeros((3 + reads.delay) * SAMPLES, np.int16), 6)) is None
    assert made.second_pass(state, None) is None


class Digits:
    """Reads "nine" in every segment."""

    digest, read = "digits", ""

    def warm_up(self) -> None:
        self.read = "warm"

    def digits(self, words: Sequence[Word], pcm: np.ndarray, begin_s: float) -> tuple[Word, ...]:
        self.read = f"{joined(word.text for word in words)} {int(pcm[0])} {begin_s:.2f}"
        return (Word("nine", begin_s, begin_s + 0.1, 0.9),)


@pytest.mark.parametrize("unfinished", [False, True])
def test_digits_that_are_read_are_the_segments_words(unfinished: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a segment whose only word would be finished by its end."""
    made, reads = rereading("__ab_ _")
    digits = Digits()
    with_digits = TwoPassDecoder(made.first, made.second, Reader(reads, SAMPLES, STEP, "reads"), digits=digits)
    assert with_digits.digest != made.digest
    with_digits.warm_up()
    assert digits.read == "warm"
    state = with_digits.start(0)
    with_digits.advance([state], log_probs(spell(60 * "_" + "__ba_ _"), certainty=0.9)[None])
    pcm = np.repeat(np.arange(state.frames + reads.delay), SAMPLES).astype(np.int16)
    if unfinished:
        monkeypatch.setattr(with_digits, "words", lambda _: ())
    again = with_digits.second_pass(state, FrameAudio(pcm, 0))
    assert again is not None
    (nine,) = again()
    assert nine.text == "nine"
    assert digits.read == f"ab {round(nine.start_s / FRAME_S)} {nine.start_s:.2f}"
    assert texts(with_digits.take(state)) == ["ba"]
