"""A number that is read with pauses: live, its finals are digits without periods; in an upload it is one number."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from model.ctc.words import Word
from server.errors import CloseReason
from server.protocols.upload import NUMBER_PAUSE_S, Upload
from server.recognition.events import Closed, Final, FinalReason
from server.text.formatting import AFTER_DIGITS, Sentences, Style

SMART = Style(punctuate=True, numerals=True)
NUMERALS = Style(numerals=True)
ACCOUNT = ("eight eight eight five", "one", "one", "two", "nine", "three", "one")


def say(text: str, start_s: float = 0.0) -> list[Word]:
    return [Word(word, start_s + i * 0.25, start_s + i * 0.25 + 0.2, 0.5) for i, word in enumerate(text.split())]


def live(style: Style, *finals: str, ends: bool = True) -> list[str]:
    sentences = Sentences(style)
    return [" ".join(word.text for word in sentences.final(say(text), ends=ends)) for text in finals]


@pytest.mark.parametrize(
    ("finals", "shown"),
    [
        (ACCOUNT, ["8885", "1", "1", "2", "9", "3", "1"]),
        (("late one", "one", "four", "eight", "forty seven", "seventeen"), ["Late one.", "One", "4", "8", "47", "17"]),
        (("four seven", "thank you", "one"), ["47", "Thank you.", "One"]),
        (("four seven", "oh one two"), ["47", "012"]),
        (("four seven", "oh"), ["47", "Oh."]),
        (("four seven", "", "one"), ["47", "", "One"]),
        (("it is four seven",), ["It is 47."]),
        (("one hundred",), ["100."]),
    ],
)
def test_live_finals_of_digits(finals: tuple[str, ...], shown: list[str]) -> None:
    assert live(SMART, *finals) == shown


def test_formatting_without_numerals_or_english_stays() -> None:
    assert live(Style(punctuate=True), "four seven", "one") == ["Four seven.", "One."]
    assert live(Style(punctuate=True, numerals=True, english=False), "hello", "yes") == ["Hello.", "Yes."]
    assert live(NUMERALS, "four seven", "one") == ["47", "1"]


def test_a_resumed_stream_continues_the_number() -> None:
    before, after = Sentences(SMART), Sentences(SMART)
    before.final(say("four seven"), ends=True)
    assert before.opening == AFTER_DIGITS
    after.opening = before.opening
    assert [word.text for word in after.final(say("one"), ends=True)] == ["1"]


def test_interim_words_after_digits_begin_a_sentence() -> None:
    sentences = Sentences(SMART)
    sentences.final(say("four seven"), ends=True)
    assert [word.text for word in sentences.partial(say("thank you"))] == ["Thank", "you"]


def upload(finals: Sequence[tuple[str, float]], style: Style = SMART, **options: Any) -> list[tuple[str, float, float]]:
    """Return text and times of the words of an upload with these finals and their starts."""
    session = SimpleNamespace(channels=[0], backlog_s=0.0)
    one = Upload(cast("Any", None), style, **options)
    one.begin(cast("Any", session))
    for text, start_s in finals:
        words = tuple(say(text, start_s))
        one.on_events([Final(0, start_s, 1.0, words, FinalReason.ENDPOINT)], None)
    one.on_events([Closed(CloseReason.CLOSE_STREAM, 0.0)], None)
    return [(word.text, word.word.start_s, word.word.end_s) for word in one._words[0]]


def test_an_upload_joins_the_finals_of_a_number() -> None:
    paused = [(text, 2.0 * at) for at, text in enumerate(ACCOUNT)]
    assert upload(paused) == [("8885112931", 0.0, 12.2)]
    finals = [("my account number is eight eight eight five", 0.0), ("one", 3.5), ("thank you", 4.0)]
    assert [text for text, *_ in upload(finals)] == ["My", "account", "number", "is", "88851.", "Thank", "you."]


def test_an_upload_keeps_apart_what_a_long_pause_or_other_words_separate() -> None:
    late = 0.2 + 0.25 + NUMBER_PAUSE_S
    assert [text for text, *_ in upload([("four five", 0.0), ("one", late)])] == ["45", "1"]
    assert [text for text, *_ in upload([("i have five", 0.0), ("two", 1.5)])] == ["I", "have", "5.", "Two"]
    sent: list[object] = []
    assert len(upload([("four five", 0.0), ("one", 1.0)], on_segment=sent.append)) == len(sent) == 2
