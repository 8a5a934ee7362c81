"""Punctuation of finals by the tagger, the cases where it is not used, and end-to-end tests of the protocols."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from model.ctc.words import Word
from server.text import formatting
from server.text.formatting import OPENING_WORDS, Sentences, Style
from tests.support.servers.live_server import LiveServer, transcript
from tests.support.servers.recognizers.spelling import SpellingModel, silence, spell, spelling_decoder
from tests.support.servers.two_models import two_models
from tests.support.servers.uploaded import encoded, said

Start = Callable[..., LiveServer]

PUNCTUATE = Style(punctuate=True)
SMART = Style(punctuate=True, numerals=True)
OTHER_LANGUAGE = Style(punctuate=True, english=False)
SPOKEN = "hello my name is john can you help me i would like to book a flight to paris on monday"
SHOWN = "Hello, my name is John. Can you help me? I would like to book a flight to Paris on Monday."


def say(text: str) -> list[Word]:
    """Return the words of a text, each 0.2 s long."""
    return [Word(word, i * 0.25, i * 0.25 + 0.2, 0.5) for i, word in enumerate(text.split())]


def final(sentences: Sentences, text: str, *, ends: bool = True) -> str:
    return " ".join(word.text for word in sentences.final(say(text), ends=ends))


@pytest.mark.parametrize(
    ("spoken", "shown"),
    [
        (SPOKEN, SHOWN),
        ("turn the heating down", "Turn the heating down."),
        ("what time is it in new york", "What time is it in New York?"),
        ("no thank you", "No, thank you."),
        ("you came from boston didn't you", "You came from Boston, didn't you?"),
        ("call five five five one two three four", "Call five five five one two three four."),
        ("yes", "Yes."),
        ("xyzzqy", "Xyzzqy."),
    ],
)
def test_sentences(spoken: str, shown: str) -> None:
    assert final(Sentences(PUNCTUATE), spoken) == shown


def written(text: str) -> list[Word]:
    """Return words that a network wrote, but those after an underscore, which are recognized ones."""
    words = say(text.lower())
    for i, token in enumerate(text.split()):
        words[i] = replace(words[i], text=words[i].text.strip("_,.?"), written="" if "_" in token else token)
    return words


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Leonard Bacon was born in Detroit, Michigan.", "Leonard Bacon was born in Detroit, Michigan."),
        ("Tell NASA about the McDonald case", "Tell NASA about the McDonald case."),
        ("Is it, he asked,", "Is it, he asked."),
        ("I went. and left", "I went. And left."),
        ("It costs twenty five. Can you pay?", "It costs 25. Can you pay?"),
        ("Give me _four _seven _one _nine if so.", "Give me 4719 if so."),
    ],
)
def test_what_a_network_wrote_is_kept(text: str, shown: str) -> None:
    assert " ".join(word.text for word in Sentences(SMART).final(written(text), ends=True)) == shown


def test_a_sentence_goes_on_in_a_segment_that_was_written_as_one_of_its_own() -> None:
    sentences = Sentences(PUNCTUATE)
    first = sentences.final(written("I would like to book a flight to."), ends=False)
    assert first[-1].text == "to"
    assert [word.text for word in sentences.final(written("Paris On monday."), ends=True)] == ["Paris", "On", "monday."]
    sentences.final(written("I would like to."), ends=False)
    assert sentences.final(written("Book a flight."), ends=True)[0].text == "book"


def test_a_word_that_was_replaced_shows_nothing_of_what_was_written() -> None:
    first, last = written("Call Leonard.")
    shown = Sentences(PUNCTUATE).final([first, replace(last, text="someone")], ends=True)
    assert " ".join(word.text for word in shown) == "Call someone."


def test_a_number_has_the_mark_after_its_last_word() -> None:
    text = final(Sentences(SMART), "it costs twenty five can you pay one hundred and two")
    assert text == "It costs 25. Can you pay 102?"


def test_a_sentence_that_was_cut_continues_without_a_capital() -> None:
    sentences = Sentences(PUNCTUATE)
    assert final(sentences, "thank you i know that the garden of the old", ends=False)[-1].isalpha()
    assert sentences.opening[-2:] == ("the", "old")
    assert final(sentences, "house is very large") == "house is very large."
    assert sentences.opening == ()
    final(sentences, "and " * 40, ends=False)
    assert len(sentences.opening) <= OPENING_WORDS


def test_interim_results_and_other_languages_are_punctuated_by_rules() -> None:
    assert [word.text for word in Sentences(PUNCTUATE).partial(say("no thank you i think"))] == [
        "No", "thank", "you", "I", "think",
    ]  # fmt: skip
    assert final(Sentences(OTHER_LANGUAGE), "no thank you") == "No thank you."


def test_the_tagger_is_read_only_where_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(formatting, "shipped_tagger", lambda: asked.append(1))
    for style in (Style(), Style(numerals=True), OTHER_LANGUAGE):
        Sentences(style)
    assert not asked
    Sentences(PUNCTUATE)
    assert asked


words = st.lists(st.text("abcdefghijklmnopqrstuvwxyz'é", min_size=1, max_size=8), max_size=30)


@settings(max_examples=60, deadline=None)
@given(words, words, st.booleans(), st.booleans())
def test_words_are_kept_and_the_same_words_give_the_same_text(
    first: list[str], second: list[str], ends: bool, numerals: bool
) -> None:
    style, texts = Style(punctuate=True, numerals=numerals), []
    for _ in range(2):
        sentences = Sentences(style)
        found = sentences.final(say(" ".join(first)), ends=ends) + sentences.final(say(" ".join(second)), ends=True)
        texts.append([word.text for word in found])
        assert " ".join(word.word.text for word in found).split() == [*first, *second]
        if not numerals:
            assert [word.text.rstrip(",.?").lower() for word in found] == [*first, *second]
    assert texts[0] == texts[1]


@pytest.fixture
def server(live_server: Start) -> LiveServer:
    return live_server(model=SpellingModel(), decoder=spelling_decoder())


AUDIO = np.concatenate([spell(SPOKEN + " "), silence(1.0)])


def test_live_finals_are_punctuated_and_interim_words_stay(server: LiveServer) -> None:
    with server.listen(punctuate="true", interim_results="true") as client:
        client.send(AUDIO)
        frames = client.finish()
    assert transcript(frames) == SHOWN
    partials = [
        [word["punctuated_word"] for word in alternative["words"]]
        for frame in frames
        if frame["type"] == "Results" and not frame["is_final"]
        for alternative in frame["channel"]["alternatives"]
        if alternative["words"]
    ]
    assert len(partials) > 3
    for before, after in pairwise(partials):
        assert after[: len(before) - 1] == before[:-1]  # the last word may be unfinished


def test_uploads_are_punctuated(server: LiveServer) -> None:
    body = encoded(AUDIO, "WAV")
    assert said(server.http.post("/v1/listen?punctuate=true&endpointing=500", content=body).json()) == SHOWN
    assert said(server.http.post("/v1/listen", content=body).json()) == SPOKEN
    answer = server.http.post("/v1/audio/transcriptions", files={"file": ("a.wav", body)}, data={"model": "whisper-1"})
    assert answer.json()["text"] == SHOWN


def test_a_model_of_another_language_is_punctuated_by_rules(live_server: Start) -> None:
    server = live_server(model=two_models())
    with server.listen(punctuate="true", language="es") as client:
        client.send(np.concatenate([spell("gracias paul de boston "), silence(1.0)]))
        assert transcript(client.finish()) == "Gracias paul de bostom."
