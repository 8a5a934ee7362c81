"""The number of a stream's language at the end of each step of a model that lets a stream choose."""

from __future__ import annotations

import numpy as np
import pytest

from model.ctc.tokens import Tokens
from model.prompts import Prompts
from model.transducer.decoder import TransducerDecoder, TransducerState
from server.errors import CloseReason
from server.recognition.messages import ChooseLanguage, EndOfAudio, Samples
from server.recognition.session import Session
from server.recognition.session_options import Limits, SessionOptions
from server.recognition.steps import Marker, StepCutter, Work
from tests.model.published.test_filter_bank import description
from tests.support.decoding.toy_transducer import SURE, toy_decoder

PROMPTS = Prompts({"en-US": 0, "de-DE": 3}, 9)
CONFIG = description()
SYMBOLS = ("<blk>", "▁a", "▁b", "c", ".", "<de-DE>", "▁<ja>", "<unk>")
BLANK, A, B, C, STOP, GERMAN, JAPANESE, _ = range(len(SYMBOLS))
STEP = CONFIG.step_samples


def session(prompts: Prompts | None, language: str | None) -> Session:
    options = SessionOptions(sample_rate=16_000, prompts=prompts, language=language)
    return Session(options, CONFIG, toy_decoder(symbols=SYMBOLS), Limits())


def samples(steps: float) -> Samples:
    return Samples(np.ones((round(steps * STEP), 1), np.int16), 0.0)


def numbers(work: list[Work]) -> list[int]:
    return [int(piece.row[-1]) for piece in work]


@pytest.mark.parametrize(("language", "number"), [(None, 10), ("auto", 10), ("multi", 10), ("de", 4), ("EN_us", 1)])
def test_each_step_ends_with_one_more_than_the_number_of_the_language(language: str | None, number: int) -> None:
    found = session(PROMPTS, language)
    work = found.take(samples(3.5))
    assert [len(piece.row) for piece in work] == [STEP + 1] * len(work)
    assert numbers(work) == [number] * len(work)
    flushed = [piece for piece in found.take(EndOfAudio(CloseReason.CLOSE_STREAM, 0.0)) if isinstance(piece, Work)]
    assert len(flushed) > 1
    assert numbers(flushed) == [number] * len(flushed)


def test_another_language_counts_from_the_next_step_on() -> None:
    found = session(PROMPTS, "en-US")
    first = found.take(samples(2.5))
    found.take(ChooseLanguage("de"))
    second = found.take(samples(2))
    found.take(ChooseLanguage(None))
    assert {*numbers(first)} == {1}
    assert {*numbers(second)} == {4}
    assert {*numbers(found.take(samples(1)))} == {10}


def test_a_model_without_a_choice_gets_the_samples_alone() -> None:
    found = session(None, "de")
    found.take(ChooseLanguage("en"))
    assert all(piece.row is piece.pcm for piece in found.take(samples(3)))


def test_the_silence_of_a_fork_has_the_language_of_the_step_before_it() -> None:
    cutter = StepCutter(0, 16_000, CONFIG)
    cutter.prompt = 3
    step = cutter.cut(np.ones(2 * STEP, np.int16), 0.0)[-1]
    cutter.prompt = 0
    fork = cutter.flush_of(step)
    assert numbers(list(fork)) == [4] * len(fork)
    assert numbers(cutter.flush(Marker.FINALIZE, 0.0)[-1:]) == [1]


def decoded(*symbols: int) -> tuple[TransducerDecoder, TransducerState]:
    decoder: TransducerDecoder = toy_decoder(symbols=SYMBOLS)
    state = decoder.start(0)
    add(decoder, state, *symbols)
    return decoder, state


def add(decoder: TransducerDecoder, state: TransducerState, *symbols: int) -> None:
    """Decode a frame for each symbol."""
    decoder.advance([state], 2 * SURE * np.eye(len(SYMBOLS), dtype=np.float32)[np.newaxis, list(symbols)])


def test_a_tag_marks_the_words_since_the_last_one_and_writes_nothing() -> None:
    decoder, state = decoded(A, C, STOP, GERMAN, B, JAPANESE, A)
    words = decoder.words(state)
    assert [(word.text, word.language) for word in words] == [("ac.", "de-DE"), ("b", "ja"), ("a", "")]
    again = decoder.load(decoder.save(state))
    assert decoder.words(again) == words


def test_a_tag_after_its_words_were_taken_marks_none_of_the_next_ones() -> None:
    decoder, state = decoded(A)
    decoder.take(state)
    add(decoder, state, GERMAN, B)
    assert [(word.text, word.language) for word in decoder.words(state)] == [("b", "")]


def test_symbols_of_other_kinds_are_no_tags() -> None:
    assert Tokens.of(SYMBOLS, BLANK).tags == {GERMAN: "de-DE", JAPANESE: "ja"}
    names = ["<eps>", "<sos/eos>", "<0x41>", "<unk>", "<pad>", "<blank>", "<zh-Hans-CN>", "<es-419>"]
    assert Tokens.of(names, 0).tags == {6: "zh-Hans-CN", 7: "es-419"}
