"""Written forms of what callers say: a list of utterances, and redaction that masks all of their digits."""

from __future__ import annotations

from pathlib import Path

import pytest

from model.ctc.words import Word, joined
from server.text.formatting import Style, format_words
from server.text.line import PAUSE_S
from server.text.redaction import Redactor
from server.text.redaction_kinds import Redaction

LEAST_RIGHT = 0.95
FOLDER = Path(__file__).parent
FORMS = [
    line.split("\t")
    for name in ("written_forms_en.tsv", "written_forms_zh.tsv")
    for line in (FOLDER / name).read_text(encoding="utf-8").splitlines()
]
"""Words as they are said, as people write them, and their kind. Those of kind heldout were written after the rules."""
ENGLISH = [(said, written) for said, written, _ in FORMS if said.isascii()]
WRONG = {
    "a one b two c three": "a1b2c3",
    "my email address is k smith at hotmail dot com": "my email address is k smith@hotmail.com",
}


def words_of(said: str, *, gap_s: float = 0.05) -> list[Word]:
    """Return the words of an utterance, a character each in Mandarin."""
    texts = said.split() if said.isascii() else list(said)
    return [Word(text, i * (0.2 + gap_s), i * (0.2 + gap_s) + 0.2, 0.9) for i, text in enumerate(texts)]


def written(said: str) -> str:
    style = Style(numerals=True, english=said.isascii())
    return joined(formatted.text for formatted in format_words(words_of(said), style))


def test_utterances_are_written_as_people_write_them() -> None:
    wrong = {said: found for said, expected, _ in FORMS if (found := written(said)) != expected}
    assert wrong == WRONG
    assert len(ENGLISH) >= 600
    assert len(FORMS) - len(ENGLISH) >= 200
    assert 1 - len(wrong) / len(FORMS) >= LEAST_RIGHT


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("look at example dot com", "look at example.com"),
        ("it is at the end dot", "it is at the end dot"),
        ("the dot com bubble", "the dot com bubble"),
        ("at twelve thirty people came", "at 12 30 people came"),
        ("march twenty twenty six", "march 2026"),
        ("he may second the motion", "he may 2nd the motion"),
        ("five pounds heavier", "5 pounds heavier"),
        ("seven dollars fifty people", "$7 50 people"),
        ("i have a one two three", "i have a 123"),
        ("my account number is four one five five five five two six seven one", "my account number is 4155552671"),
        ("十分好", "十分好"),
        ("三四个人", "三四个人"),
        ("两百八十块", "280块"),
        ("一点也不", "一点也不"),
    ],
)
def test_which_words_belong_to_a_number(said: str, expected: str) -> None:
    assert written(said) == expected


def test_a_pause_separates_what_is_written_as_one() -> None:
    for said in ("four seven one", "twelve thirty p m", "john at example dot com", "five dollars"):
        formatted = format_words(words_of(said, gap_s=PAUSE_S + 0.01), Style(numerals=True))
        assert len(formatted) == len(said.split()), said


@pytest.mark.parametrize(("said", "expected"), ENGLISH)
def test_whatever_is_written_with_digits_is_masked(said: str, expected: str) -> None:
    """Redaction comes before formatting: the two must agree on which words carry digits."""
    words = words_of(said)
    redactor = Redactor(frozenset({Redaction.AGGRESSIVE}), 1)
    masked = redactor.final(0, words)
    shown = format_words(masked, Style(numerals=True))
    digits = "".join(word.text for word in shown if not word.text.startswith("["))
    assert not any(map(str.isdigit, digits)), (expected, digits)
    spans = [(word.start_s, word.end_s) for word in masked if word.text.startswith("[")]
    for formatted in format_words(words, Style(numerals=True)):
        if any(map(str.isdigit, formatted.text)):
            start_s, end_s = formatted.word.start_s, formatted.word.end_s
            assert any(begin < end_s and start_s < end for begin, end in spans), formatted.text
