"""What Whisper is given of a stream, and what becomes of its text; with a real model: tests/ecosystem/whisper."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from model.ctc.bias import Bias
from model.ctc.interface import FrameAudio, SavesStates, TwoPass
from model.whisper import WhisperReading
from server.recognition.events import Fallback
from server.recognition.keyterms.keyterms import Keyterms
from server.recognition.whisper.timed_pass import Unusable
from server.recognition.whisper.whisper_decoder import LEAD_S, WhisperDecoder
from tests.support.servers.recognizers.spelling import CONFIG, FRAME, silence, spell, spelling_decoder
from tests.support.streams.session_bench import SessionBench


class Reader:
    """Answers with these texts, one after the other."""

    def __init__(self, *texts: str, repetition: float = 1.0) -> None:
        self.texts, self.repetition = list(texts), repetition
        self.received: list[tuple[np.ndarray[Any, Any], str, str]] = []

    def read(self, pcm: np.ndarray[Any, Any], language: str, terms: str = "") -> WhisperReading:
        self.received.append((pcm, language, terms))
        return WhisperReading(self.texts.pop(0), 0.5, self.repetition)


def decoder(reader: Reader, language: str = "en-US") -> WhisperDecoder:
    return WhisperDecoder(spelling_decoder(), reader, language, CONFIG, "whisper:x")  # type: ignore[arg-type]


def bench(reader: Reader, **options: Any) -> SessionBench:
    return SessionBench(decoder=decoder(reader), **options)


def said(one: SessionBench) -> list[str]:
    return [" ".join(word.text for word in final.words) for final in one.finals()]


def test_each_finished_segment_is_read_from_its_own_begin_on() -> None:
    reader = Reader("One, TWO.", "Three?", "four")
    made = bench(reader)
    audio = np.concatenate([spell("won too"), silence(1.2), spell("tree"), silence(1.2)])
    made.send(audio)
    made.finalize()
    made.send(spell("for"))
    made.close()
    made.answer()
    assert [text for text in said(made) if text] == ["one two", "three", "four"]
    (one, language, _), (three, _, _), (four, _, _) = reader.received
    assert language == "en-US"
    assert np.array_equal(one, audio[: len(one)])
    begin = int(np.flatnonzero(three)[0])
    assert np.array_equal(three[begin : begin + len(spell("tree"))][: FRAME * 7], spell("tree")[: FRAME * 7])
    assert not any(np.array_equal(three[n : n + FRAME], one[:FRAME]) for n in range(0, begin, FRAME)), "no earlier word"
    assert np.array_equal(four[: FRAME * 5], spell("for")[: FRAME * 5])


def test_partials_are_those_of_the_stream_and_times_are_ours() -> None:
    made, plain = bench(Reader("yellow there")), SessionBench()
    for one in (made, plain):
        one.send(np.concatenate([spell("hello there"), silence(1.2)]))
        one.answer()
    assert [event.words for event in made.partials()] == [event.words for event in plain.partials()]
    (final,), (ours,) = made.finals(), plain.finals()
    assert [(w.start_s, w.end_s) for w in final.words] == [(w.start_s, w.end_s) for w in ours.words]
    assert [word.confidence for word in final.words] == [0.5, ours.words[1].confidence]


@pytest.mark.parametrize(
    ("language", "written", "words"),
    [
        ("en", "Dr. Smith's 25% — well-known", "doctor smith's twenty five percent well known"),
        ("fr", "Où est l'été, Anna?", "où est l'été anna"),
    ],
)
def test_the_text_has_the_spelling_of_our_words(language: str, written: str, words: str) -> None:
    made = SessionBench(decoder=decoder(Reader(written), language))
    made.send(np.concatenate([spell("a b c d e f g"), silence(1.2)]))
    made.answer()
    assert said(made) == [words]


def test_key_terms_are_those_of_the_time_when_the_segment_ends() -> None:
    reader = Reader("one", "two")
    made = bench(reader, keyterms=Keyterms.of(["Kubernetes", "24/7"], [("never", -2.0)]))
    made.send(np.concatenate([spell("one"), silence(1.2)]))
    made.answer()
    made.configure("Postgres")
    made.send(np.concatenate([spell("two"), silence(1.2)]))
    made.answer()
    (_, _, first), (_, _, second) = reader.received
    assert first.split(", ") == ["kubernetes", "twenty four seven"]
    assert second.split(", ")[0] == "postgres"


def test_a_text_that_repeats_itself_is_not_used() -> None:
    made = decoder(Reader("no " * 40, repetition=9.0))
    state = made.start(0)
    made.advance([state], log_probs("ab"))
    again = made.second_pass(state, FrameAudio(np.zeros(10 * FRAME, np.int16), 0))
    assert again is not None
    with pytest.raises(Unusable) as raised:
        again()
    assert raised.value.reason is Fallback.REPEATED


def log_probs(text: str, blanks: int = 0) -> np.ndarray[Any, Any]:
    """Return outputs (1, T, V) that spell a text after blank frames."""
    symbols = [0] * blanks + [index for letter in text for index in (CONFIG.vocabulary.index(letter), 0)]
    found = np.full((1, len(symbols), len(CONFIG.vocabulary)), -20.0, np.float32)
    found[0, range(len(symbols)), symbols] = 0.0
    return found


def test_at_most_two_seconds_before_the_first_word_are_read() -> None:
    reader = Reader("x")
    made = decoder(reader)
    state, blanks = made.start(0), 100
    made.advance([state], log_probs("ab", blanks))
    audio = FrameAudio(np.arange((blanks + 4) * FRAME, dtype=np.int64).astype(np.int16), 0)
    again = made.second_pass(state, audio)
    assert again is not None
    again()
    ((pcm, _, _),) = reader.received
    assert np.array_equal(pcm, audio.pcm[(blanks - round(LEAD_S / CONFIG.frame_s)) * FRAME :])


def test_audio_that_is_gone_is_not_read() -> None:
    made = decoder(Reader())
    state = made.start(0)
    assert made.second_pass(state, FrameAudio(np.zeros(0, np.int16), 0)) is None
    made.advance([state], log_probs("ab"))
    assert made.second_pass(state, FrameAudio(np.zeros(0, np.int16), 1)) is None


def test_words_after_a_cut_are_read_without_the_words_before_it() -> None:
    reader = Reader("x")
    made = decoder(reader)
    state = made.start(0)
    made.advance([state], log_probs("ab cd ef"))
    (taken,) = made.take(state, 1)
    again = made.second_pass(state, FrameAudio(np.arange(20 * FRAME).astype(np.int16), 0))
    assert again is not None
    again()
    assert reader.received[0][0][0] == np.int16(round(taken.end_s / CONFIG.frame_s) * FRAME)


def test_copies_are_independent() -> None:
    made = decoder(Reader())
    state = made.start(0, Bias.of([("ab", None)]))
    made.advance([state], log_probs("ab"))
    twin = made.copy(state)
    made.advance([twin], log_probs("c"))
    assert [made.words(one)[0].text for one in (state, twin)] == ["ab", "abc"]
    assert (twin.bias, twin.revision > state.revision) == (state.bias, True)


def test_it_has_a_second_pass_and_no_states_for_tickets() -> None:
    made = decoder(Reader())
    assert isinstance(made, TwoPass)
    assert not isinstance(made, SavesStates)
    assert made.digest != decoder(Reader(), "de").digest != spelling_decoder().digest
