"""Text of a model that writes capitals and marks: they are kept, and numbers, own forms and redaction work on it."""

from __future__ import annotations

import pytest

from model.ctc.words import Word, joined
from server.text.formatting import Sentences, Style, format_words
from server.text.own_forms import OwnForms
from server.text.redaction import Redactor
from server.text.redaction_kinds import Redaction

WRITTEN = Style(punctuate=True, numerals=True, written=True)


def words(text: str) -> list[Word]:
    return [Word(part, at * 0.4, at * 0.4 + 0.3, 0.9) for at, part in enumerate(text.split())]


def shown(text: str, style: Style = WRITTEN) -> str:
    return joined(formatted.text for formatted in format_words(words(text), style))


@pytest.mark.parametrize("english", [True, False])
@pytest.mark.parametrize("text", ["Hello, I am Kim. Is it Paris?", "no marks at all", "Ich heiße Anna."])
def test_capitals_and_marks_are_those_of_the_model(text: str, english: bool) -> None:
    sentences = Sentences(Style(punctuate=True, written=True, english=english))
    assert joined(each.text for each in sentences.partial(words(text))) == text
    assert joined(each.text for each in sentences.final(words(text), ends=True)) == text


@pytest.mark.parametrize(
    ("said", "written"),
    [
        ("It costs Twenty five dollars, not thirty.", "It costs $25, not 30."),
        ("We have twenty. Five came.", "We have 20. 5 came."),
        ("Is it forty two?", "Is it 42?"),
    ],
)
def test_numbers_keep_the_mark_after_them_and_none_goes_over_a_mark(said: str, written: str) -> None:
    assert shown(said) == written


def test_own_forms_are_found_under_capitals_and_keep_the_mark() -> None:
    style = Style(punctuate=True, written=True).with_own(OwnForms({("tutti", "a", "s", "r"): "Tutti ASR"}))
    assert shown("This is Tutti A S R, I think.", style) == "This is Tutti ASR, I think."


@pytest.mark.parametrize(
    ("said", "masked"),
    [
        (
            "My card number is Four one one one, one one one one, one one one one. One one one one.",
            "My card number is [CREDIT_CARD_1].",
        ),
        ("It is 4111 1111 1111 1111, thanks.", "It is [CREDIT_CARD_1], thanks."),
        ("It is 4111-1111-1111-1111. Thanks.", "It is [CREDIT_CARD_1]. Thanks."),
    ],
)
def test_numbers_are_masked_under_capitals_and_marks(said: str, masked: str) -> None:
    found = Redactor(frozenset({Redaction.PCI}), 1).final(0, words(said))
    assert joined(each.text for each in format_words(found, WRITTEN)) == masked


def test_an_unfinished_number_is_masked_in_interims_whatever_its_capital() -> None:
    redactor = Redactor(frozenset({Redaction.PCI}), 1)
    found, shown_words = redactor.partial(0, words("Yes, Four one one One, Two"))
    assert [word.text for word in found] == ["Yes,", "[NUMBER_1]"]
    assert shown_words == 1
