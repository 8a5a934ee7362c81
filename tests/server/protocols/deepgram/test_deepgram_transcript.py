"""The JSON of live words equals that of the structs, after any earlier frames."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.ctc.words import Word
from server.protocols.deepgram.messages import Alternatives
from server.protocols.deepgram.transcript import Transcript, alternative
from server.text.formatting import Sentences, Style

STYLES = [Style(), Style(punctuate=True), Style(numerals=True), Style(punctuate=True, numerals=True)]
TEXTS = ["is", "it", "twenty", "one", "o'clock"]
VOCABULARY = [Word(text, n / 3, n / 3 + 0.1, 1 / (n + 1)) for n, text in enumerate(TEXTS)]

segments = st.lists(
    st.tuples(st.lists(st.sampled_from(VOCABULARY), max_size=6).map(tuple), st.sampled_from(["partial", "cut", "end"])),
    max_size=10,
)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("punctuated", [False, True])
@given(script=segments)
def test_the_json_does_not_depend_on_words_encoded_before(
    style: Style, punctuated: bool, script: list[tuple[tuple[Word, ...], str]]
) -> None:
    transcript, sentences = Transcript(style, punctuated=punctuated), Sentences(style)
    for words, how in script:
        if how == "partial":
            found, formatted = transcript.partial(words), sentences.partial(words)
        else:
            found, formatted = (
                transcript.final(words, ends=how == "end"),
                sentences.final(words, ends=how == "end"),
            )
        wanted = msgspec.json.encode(Alternatives((alternative(formatted, punctuated),)))
        assert (bytes(found[0]), found[1]) == (wanted, len(formatted))
        if how == "partial":
            assert transcript.partial(words) is found, "the same words once more"
