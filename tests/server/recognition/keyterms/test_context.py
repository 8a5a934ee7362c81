"""Key terms from what another speaker said: which words, for how long, and through a socket."""

from __future__ import annotations

import math
import time
import timeit
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from server.audio.pcm import PCM
from server.errors import KeytermsTooOften
from server.recognition.keyterms.keyterms import (
    CONTEXT_S,
    MAX_CHARACTERS,
    MAX_CONTEXT_TERMS,
    MAX_WORDS,
    Keyterms,
    rare_terms,
)
from tests.support.servers.live_server import LiveServer
from tests.support.servers.recognizers.spelling import CONFIG, silence, spell
from tests.support.servers.recognizers.wavering import WaveringDecoder
from tests.support.servers.uploaded import encoded
from tests.support.streams.session_bench import SessionBench

Start = Callable[..., LiveServer]
STEP_S = CONFIG.step_samples / CONFIG.sample_rate
KNOWN = {"am": -6.0, "i": -4.0, "speaking": -9.0, "to": -3.5, "bill": -9.4, "miller": -11.9}


class Rating(WaveringDecoder):
    """Knows a few words."""

    def word_log_prob(self, word: str) -> float:
        return KNOWN.get(word, -math.inf)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Am I speaking to Bill Miller?", ("miller",)),
        ("Am I speaking to Żółkiewska's bill", ("zolkiewska",)),
        ("Kowalczyk to Miller to Kowalczyk", ("miller", "kowalczyk")),
        ("am i speaking to Москва 今天 order 4711x", ("order",)),
        ("to Xu", ()),
        ("Kowalczyk " + "to " * MAX_WORDS, ()),
        ("", ()),
    ],
)
def test_rare_words_of_a_text_are_terms(text: str, expected: tuple[str, ...]) -> None:
    assert rare_terms(text, Rating()) == expected


def test_every_word_is_rare_for_a_decoder_that_does_not_rate_words() -> None:
    assert rare_terms("speaking to Miller", WaveringDecoder()) == ("speaking", "miller")


@pytest.mark.parametrize("character", ["\u4eca", "\ud55c", "é", "\U0001f600", "'", "a"])
def test_a_long_text_is_read_in_bounded_time(character: str) -> None:
    """31,000 Chinese characters took 0.25 s on the event loop; those after the last words do not count."""
    text = f"Kowalczyk {character * 31_000} Miller"
    assert rare_terms(text, Rating()) == ("miller",)
    read = partial(rare_terms, text, Rating())
    assert min(timeit.repeat(read, timer=time.thread_time, number=1, repeat=3)) < 0.02


def test_every_text_costs_some_of_the_allowance() -> None:
    keyterms, text = bench().session.keyterms, "\u4eca\u5929" * 10_000
    for _ in range(10):
        assert keyterms.add_context(text) == ()
    with pytest.raises(KeytermsTooOften):
        keyterms.add_context(text)


def bench(**options: object) -> SessionBench:
    return SessionBench(decoder=Rating(), endpointing_ms=None, **options)


def send(one: SessionBench, audio: PCM, steps: int = 100) -> None:
    """Send audio in messages of this many steps, each of which is answered."""
    for begin in range(0, len(audio), steps * CONFIG.step_samples):
        one.send(audio[begin : begin + steps * CONFIG.step_samples])
        one.answer()


def test_context_counts_for_a_while_and_then_the_own_terms_alone() -> None:
    one = bench(keyterms=Keyterms.of(["own"]))
    assert one.session.keyterms.add_context("speaking to Kowalczyk") == ("kowalczyk",)
    send(one, np.concatenate([spell("one "), silence(CONTEXT_S), spell("six "), silence(2.0)]))
    one.close()
    one.answer()
    assert one.text().split() == ["one+kowalczyk+own", "six+own"]
    assert one.session.keyterms.current.context == ()


def test_the_end_depends_on_the_audio_alone() -> None:
    """Not on how it is cut into messages, nor on when steps are answered."""
    word = spell("abc ")
    words = np.concatenate([*[word] * (round(CONTEXT_S * CONFIG.sample_rate / len(word)) + 9), silence(2.0)])
    texts = []
    for steps in (1, 3, 300):
        one = bench()
        one.session.keyterms.add_context("Kowalczyk")
        send(one, words, steps)
        one.close()
        one.answer()
        texts.append(one.text().split())
    assert texts[0] == texts[1] == texts[2]
    assert {"abc+kowalczyk", "abc"} == set(texts[0])


def test_later_texts_add_words_and_restart_the_time() -> None:
    one = bench()
    one.session.keyterms.add_context("Kowalczyk")
    send(one, silence(CONTEXT_S - 1))
    assert one.session.keyterms.add_context("Miller") == ("kowalczyk", "miller")
    send(one, silence(2.0))
    assert one.session.keyterms.current.context == ("kowalczyk", "miller")
    one.session.keyterms.replace_phrases(["own"])
    assert one.session.channels[0].settings.bias_steps == round((CONTEXT_S - 2.0) / STEP_S), (
        "Configure does not lengthen it"
    )
    send(one, silence(CONTEXT_S))
    assert one.session.keyterms.current == Keyterms.of(["own"])


def test_the_oldest_words_give_way_and_rapid_texts_are_refused() -> None:
    one = bench()
    names = [f"{a}{b}" + 4 * "name" for a in "abcdefgh" for b in "ijklmnop"]
    assert one.session.keyterms.add_context(" ".join(names)) == tuple(names[-MAX_CONTEXT_TERMS:])
    own = Keyterms.of(["y" * (MAX_CHARACTERS - 10)])
    assert own.in_context(["abcdef", "ghijkl"]).context == ("ghijkl",), "as much as there is room for"
    for name in names[:2]:
        one.session.keyterms.add_context(f"{name}er")
    with pytest.raises(KeytermsTooOften):
        one.session.keyterms.add_context(" ".join(f"{name}est" for name in names))
    assert len(one.session.keyterms.current.context) == MAX_CONTEXT_TERMS


# Through a socket.


def test_the_prompt_of_an_upload_favors_its_rare_words(live_server: Start) -> None:
    files = {"file": ("a.wav", encoded(spell("hello "), "WAV"))}
    with live_server(decoder=Rating()).http as http:
        answer = http.post("/v1/audio/transcriptions", files=files, data={"prompt": "to Kowalczyk"})
    assert "+kowalczyk" in answer.json()["text"].lower()
