"""Words of our search or of an encoder-decoder network: which are taken, numbers, key terms, long audio, times."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.ctc.bias import NO_BIAS, Bias
from model.ctc.combination import LEAST_LOG_PROB, MOST_SECONDS, PER_SECOND, Transcript, combined, is_sure
from model.ctc.words import Word

RATE = 100
SURE, UNSURE = -0.05, -2.0


class Writes:
    """A network that writes one text after the other, and records how much audio it got."""

    sample_rate, longest_s, digest = RATE, 30.0, "writes"

    def __init__(self, *texts: str, log_prob: float = SURE, numbers: Sequence[int] = ()) -> None:
        self.texts, self.log_prob, self.numbers = list(texts), log_prob, frozenset(numbers)
        self.seconds: list[float] = []

    def warm_up(self) -> None:
        raise NotImplementedError

    def transcribe(self, pcm: np.ndarray) -> Transcript | None:
        self.seconds.append(len(pcm) / RATE)
        text = self.texts.pop(0)
        written = tuple(text.split())
        said = tuple(word.strip(",.").lower() for word in written)
        return Transcript(said, written, self.numbers, self.log_prob) if text != "-" else None


def words(text: str, start_s: float = 1.0, each_s: float = 0.5) -> tuple[Word, ...]:
    return tuple(Word(one, start_s + n * each_s, start_s + n * each_s + 0.4, 0.9) for n, one in enumerate(text.split()))


def silence(seconds: float) -> tuple[np.ndarray, float]:
    """Return samples that begin at 0.5 s."""
    return np.zeros(round(seconds * RATE), np.int16), 0.5


def joined(ours: tuple[Word, ...], network: Writes, seconds: float = 5.0, bias: Bias = NO_BIAS) -> str:
    result = combined(lambda: ours, ours, silence(seconds), bias, network)
    return " ".join(word.text for word in result)


def never() -> tuple[Word, ...]:
    raise AssertionError("no search is needed")


def test_a_sure_text_replaces_ours_with_our_times() -> None:
    ours = words("where was my border")
    result = combined(never, ours, silence(5.0), NO_BIAS, Writes("where is my order"))
    assert [word.text for word in result] == ["where", "is", "my", "order"]
    assert [(word.start_s, word.end_s) for word in result] == [(word.start_s, word.end_s) for word in ours]
    assert [word.confidence for word in result] == [0.9, pytest.approx(np.exp(SURE)), 0.9, pytest.approx(np.exp(SURE))]


@pytest.mark.parametrize("text", ["-", ""], ids=["no usable text", "no words"])
def test_without_a_text_ours_stays(text: str) -> None:
    assert joined(words("where was my border"), Writes(text)) == "where was my border"


def test_an_unsure_text_is_not_taken_and_short_audio_is_not_read() -> None:
    assert joined(words("yes"), Writes("yes sir", log_prob=UNSURE)) == "yes"
    network = Writes("six six six")
    assert joined(words("six"), network, seconds=1.4) == "six"
    assert not network.seconds


def test_longer_audio_needs_less_certainty() -> None:
    limit = LEAST_LOG_PROB - PER_SECOND * MOST_SECONDS
    assert is_sure(limit + 0.01, 60.0)
    assert not is_sure(limit - 0.01, 60.0)
    assert not is_sure(limit + 0.01, 2.0)


@pytest.mark.parametrize(
    ("ours", "theirs", "numbers", "text"),
    [
        ("number is four seven one", "number is four hundred seventy one", (2, 3, 4), "number is four seven one"),
        ("four seven one its mine", "four hundred seventy one is mine", (0, 1, 2), "four seven one is mine"),
        ("it is five or for tea", "it is five or forty", (4,), "it is five or for tea"),
        ("it costs pounds", "it costs twenty pounds", (2,), "it costs twenty pounds"),
        ("one and to", "one and two", (0, 2), "one and to"),
    ],
)
def test_numbers_written_in_digits_are_ours_where_we_have_words(
    ours: str, theirs: str, numbers: Sequence[int], text: str
) -> None:
    assert joined(words(ours), Writes(theirs, numbers=numbers)) == text


def test_words_keep_what_the_network_wrote_and_our_numbers_its_marks() -> None:
    ours = words("call leonard at four seven one if so")
    result = combined(lambda: ours, ours, silence(9.0), NO_BIAS, Writes("Call Leonard at 471, if so.", numbers=[3]))
    assert [word.written for word in result] == ["Call", "Leonard", "at", "four", "seven", "one,", "if", "so."]
    assert [word.text for word in result] == [word.text for word in ours]
    unsure = combined(lambda: ours, ours, silence(9.0), NO_BIAS, Writes("Call Leonard.", log_prob=UNSURE))
    assert {word.written for word in unsure} == {""}


def test_a_text_without_a_key_term_that_we_have_is_not_taken() -> None:
    bias = Bias.of([("kumiko", 2.0), ("plain", -2.0)])
    assert joined(words("call kumiko now"), Writes("call the company now"), bias=bias) == "call kumiko now"
    assert joined(words("kall kumiko now"), Writes("call kumiko now"), bias=bias) == "call kumiko now"
    assert joined(words("a plain one"), Writes("a plane one"), bias=bias) == "a plane one"


def test_unsure_texts_numbers_and_key_terms_need_the_search_which_runs_once() -> None:
    first, runs = (*words("a b"), *words("four", 40.0)), []

    def search() -> tuple[Word, ...]:
        runs.append(1)
        return (*words("x y"), *words("five", 40.0))

    for count, network in enumerate((Writes("-", "nine", numbers=[0]), Writes("-", "-")), 1):
        result = combined(search, first, silence(50.0), NO_BIAS, network)
        assert [word.text for word in result] == ["x", "y", "five"]
        assert len(runs) == count
    bias = Bias.of([("kumiko", 2.0)])
    result = combined(lambda: words("call kumiko"), words("call umiko"), silence(5.0), bias, Writes("call amigo"))
    assert [word.text for word in result] == ["call", "kumiko"]


def test_long_audio_is_divided_in_the_longest_pauses() -> None:
    ours = (*words("a b", 1.0), *words("c d", 25.0), *words("e f", 50.0))
    network = Writes("aa bb", "-", "ee ff")
    assert joined(ours, network, seconds=60.0) == "aa bb c d ee ff"
    assert sum(network.seconds) == pytest.approx(60.0, abs=0.05)
    assert max(network.seconds) <= 30.0


def test_a_word_without_a_pause_to_divide_stays_ours() -> None:
    assert joined(words("long"), Writes(), seconds=40.0) == "long"


@given(st.lists(st.integers(1, 40), min_size=2, max_size=30), st.data())
def test_parts_have_all_words_in_order_and_all_audio(gaps: list[int], data: st.DataObject) -> None:
    at, ours = 0.0, []
    for number, gap in enumerate(gaps):
        ours.append(Word(f"w{number}", at, at + 0.3, 1.0))
        at += gap / 2
    network = Writes(*["-"] * len(gaps))
    network.longest_s = data.draw(st.sampled_from([2.0, 10.0, 30.0]))
    seconds = at + 1.0
    result = combined(lambda: ours, ours, (np.zeros(round(seconds * RATE), np.int16), 0.0), NO_BIAS, network)
    assert list(result) == ours
    assert all(part <= network.longest_s + 0.01 for part in network.seconds)
