"""The operator's own written forms: matches, spans and times, unfinished phrases, redaction, and bad files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.ctc.words import Word, joined
from server.errors import SettingsError
from server.text.formatting import FormattedWord, Sentences, Style, format_words
from server.text.own_forms import MAX_CHARACTERS, MAX_WORDS, OwnForms, phrase_words, read_own_forms
from server.text.redaction import Redactor
from server.text.redaction_kinds import Redaction

FORMS = {
    "tutti a s r": "Tutti ASR",
    "tutti": "Tutti",
    "a s r": "ASR",
    "seven eleven": "7-Eleven",
    "i phone": "iPhone",
    "windows eleven": "Windows 11",
    "hot line": "0800 123 4567",
    "gee pee you": "gpu",
    "yahoo": "Yahoo!",
    "北京 烤鸭": "北京烤鸭™",
}


def forms(given_: dict[str, str] | None = None) -> OwnForms:
    return OwnForms({phrase_words(phrase): text for phrase, text in (given_ or FORMS).items()}, "digest")


def words(text: str) -> tuple[Word, ...]:
    """Return a word each half second."""
    return tuple(Word(word, at / 2, at / 2 + 0.4, 0.5) for at, word in enumerate(text.split()))


def styled(*, punctuate: bool = False, numerals: bool = False, english: bool = True, **options: bool) -> Style:
    style = Style(punctuate=punctuate, numerals=numerals, english=english)
    return style.with_own(forms(), **options)


def shown(formatted: Sequence[FormattedWord]) -> str:
    return joined(each.text for each in formatted)


@pytest.mark.parametrize(
    ("said", "written"),
    [
        ("we use tutti a s r here", "we use Tutti ASR here"),
        ("tutti a s is not a s r", "Tutti a s is not ASR"),
        ("Tutti a s r. tutti, a s r", "Tutti ASR. Tutti, ASR"),
        ("at seven eleven or at seven twelve", "at 7-Eleven or at 7:12"),
        ("call five seven eleven six", "call 57 11 6"),
        ("it is seven eleven p m", "it is 7:11 pm"),
        ("an i phone please", "an iPhone please"),
        ("nothing to see", "nothing to see"),
        ("tutti tutti a s r tutti", "Tutti Tutti ASR Tutti"),
        ("", ""),
    ],
)
def test_the_longest_phrase_is_written(said: str, written: str) -> None:
    """One of ours that reaches further than the phrase stands."""
    assert shown(format_words(words(said), styled(numerals=True))) == written


def test_a_phrase_in_characters() -> None:
    said = tuple(Word(character, at / 2, at / 2 + 0.4, 1.0) for at, character in enumerate("我要北京烤鸭"))
    formatted = format_words(said, styled(numerals=True, english=False))
    assert [each.text for each in formatted] == ["我", "要", "北京烤鸭™"]
    assert shown(formatted) == "我要北京烤鸭™"


def test_capitals_of_a_written_form_are_the_operators() -> None:
    style = styled(punctuate=True, english=False)
    texts = ["i phone users", "gee pee you time", "we like yahoo", "and then tutti a s r"]
    written = [shown(Sentences(style).final(words(text), ends=True)) for text in texts]
    assert written == ["iPhone users.", "Gpu time.", "We like Yahoo!", "And then Tutti ASR."]


def test_a_phrase_is_one_word_with_the_times_of_all() -> None:
    said = words("the tutti a s r server")
    _, phrase, last = format_words(said, styled(numerals=True))
    assert phrase.word == Word("tutti a s r", said[1].start_s, said[4].end_s, 0.5)
    assert last.word is said[5]


def test_where_no_formatting_is_requested_words_are_as_recognized() -> None:
    style = Style().with_own(forms())
    assert shown(format_words(words("tutti a s r"), style)) == "tutti a s r"


# Unfinished segments


def test_interims_have_written_forms_and_count_no_word_as_stable_that_may_become_one() -> None:
    sentences, said = Sentences(styled(numerals=True)), words("the tutti a s r server")
    seen = [(shown(sentences.partial(said[:end])), sentences.stable(said[:end], end)) for end in range(1, 7)]
    assert seen == [
        ("the", 1),
        ("the Tutti", 1),
        ("the Tutti a", 1),
        ("the Tutti a s", 1),
        ("the Tutti ASR", 2),
        ("the Tutti ASR server", 3),
    ]
    assert sentences.stable(said, 3) == 1, "the phrase has words that may change"


def test_high_stability_leaves_out_what_may_become_a_phrase() -> None:
    sentences, said = Sentences(styled(numerals=True, settled_only=True)), words("the tutti a s r server")
    texts = [shown(sentences.partial(said[:end])) for end in range(1, 7)]
    assert texts == ["the", "the", "the", "the", "the Tutti ASR", "the Tutti ASR server"]


letters = st.sampled_from("abc")
phrases = st.dictionaries(
    st.lists(letters, min_size=1, max_size=4).map(tuple), st.sampled_from(["X", "Y Z", "1", "x."]), max_size=6
)
segments = st.lists(st.sampled_from(["a", "b", "c", "b.", "C"]), max_size=12)


@given(phrases=phrases, segment=segments, style=st.builds(Style, st.booleans(), st.booleans(), st.booleans()))
def test_spans_cover_each_word_once_and_keep_its_times(
    phrases: dict[tuple[str, ...], str], segment: list[str], style: Style
) -> None:
    said = words(" ".join(segment))
    formatted = format_words(said, style.with_own(OwnForms(phrases)))
    assert " ".join(each.word.text for each in formatted).split() == segment
    at = 0
    for each in formatted:
        size = len(each.word.text.split())
        assert (each.word.start_s, each.word.end_s) == (said[at].start_s, said[at + size - 1].end_s)
        at += size
    assert at == len(said)


@given(phrases=phrases, segment=segments, extent=st.integers(0, 12), stable=st.integers(0, 12))
def test_stable_words_stay_whatever_follows(
    phrases: dict[tuple[str, ...], str], segment: list[str], extent: int, stable: int
) -> None:
    sentences, said = Sentences(Style(numerals=True).with_own(OwnForms(phrases))), words(" ".join(segment))
    part = said[:extent]
    stable = min(stable, len(part))
    kept = sentences.stable(part, stable)
    before = sentences.partial(part)
    for after in (sentences.partial(said), sentences.partial((*part[:stable], *words("c c a b a")))):
        assert [each.text for each in before[:kept]] == [each.text for each in after[:kept]]


@given(phrases=phrases, segment=segments)
def test_matches_are_those_of_a_plain_search(phrases: dict[tuple[str, ...], str], segment: list[str]) -> None:
    plain = [text.strip(".").casefold() for text in segment]
    found, at = [], 0
    while at < len(plain):
        sizes = [len(each) for each in phrases if tuple(plain[at : at + len(each)]) == each]
        marked = next((end - at for end in range(at + 1, len(segment) + 1) if "." in segment[end - 1]), len(segment))
        size = max((size for size in sizes if size <= marked), default=0)
        if size:
            found.append((at, at + size))
        at += max(1, size)
    assert [(span.start, span.end) for span in OwnForms(phrases).spans(segment)] == found


# Redaction


@pytest.mark.parametrize(
    ("kinds", "written"),
    [
        ([Redaction.PCI], "Windows 11 on the 0800 123 4567"),
        ([Redaction.PHONE], "Windows 11 on the hot line"),
        ([Redaction.PCI, Redaction.NUMBERS], "Windows 11 on the hot line"),
        ([Redaction.AGGRESSIVE], "windows [NUMBER_1] on the hot line"),
    ],
)
def test_no_form_writes_as_many_digits_as_a_stream_masks(kinds: list[Redaction], written: str) -> None:
    masked = Redactor(frozenset(kinds), 1).final(0, words("windows eleven on the hot line"))
    style = Style(numerals=True).with_own(forms(), kinds)
    assert shown(format_words(masked, style)) == written


# The file


def test_a_file_is_read_with_comments_marks_of_order_and_characters(tmp_path: Path) -> None:
    path = tmp_path / "forms.tsv"
    lines = ("\ufeff# product names", "", "Tutti  A S R\tTutti ASR ", "北京烤鸭\t烤鸭", "i’m\tI am", "")
    path.write_bytes("\r\n".join(lines).encode())
    read = read_own_forms(path)
    assert len(read) == 3
    spans = read.spans(["tutti", "a", "s", "r", *"北京烤鸭", "I'm"])
    assert [span.text for span in spans] == ["Tutti ASR", "烤鸭", "I am"]
    path.write_text("i'm\tI am\n北京 烤鸭\t烤鸭\ntutti a s r\tTutti ASR\n", encoding="utf-8")
    assert read_own_forms(path).digest == read.digest, "neither order nor comments count"
    path.write_text("i'm\tI'm\n北京 烤鸭\t烤鸭\ntutti a s r\tTutti ASR\n", encoding="utf-8")
    assert read_own_forms(path).digest != read.digest


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("tutti a s r Tutti ASR", "has 0 tabs; expected a phrase, one tab, and its written form"),
        ("tutti\tTutti\tASR", "has 2 tabs"),
        ("  \tTutti", "there is no phrase before the tab"),
        ("tutti\t ", "there is no written form after the tab"),
        ("a s r.\tASR", "'r.' has a mark at its end; words are compared without marks, leave it out"),
        ("one\tagain", "the phrase is in line 1 already; remove one of the two"),
        ("ONE\tagain", "the phrase is in line 1 already"),
        (f"{'a ' * (MAX_WORDS + 1)}\tA", f"the phrase has {MAX_WORDS + 1} words; at most {MAX_WORDS}"),
        (f"a\t{'A' * (MAX_CHARACTERS + 1)}", f"has {MAX_CHARACTERS + 1} characters; at most {MAX_CHARACTERS}"),
        ("a\tA\u2028B", "the written form has a control character; leave it out"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, problem: str) -> None:
    path = tmp_path / "forms.tsv"
    path.write_text(f"one\tOne\n# comment\n{line}\n", encoding="utf-8")
    with pytest.raises(SettingsError) as refused:
        read_own_forms(path)
    assert str(refused.value).startswith(f"{path}:3: ")
    assert problem in str(refused.value)


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "forms.tsv"
    path.write_bytes(b"one\tOne\ntwo\t\xff\n")
    with pytest.raises(SettingsError, match=r"forms\.tsv:2: byte 0xff is not UTF-8"):
        read_own_forms(path)
    with pytest.raises(SettingsError, match=r"missing\.tsv"):
        read_own_forms(tmp_path / "missing.tsv")
