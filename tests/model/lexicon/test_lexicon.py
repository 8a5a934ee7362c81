"""Lexicon files: reading and writing, errors with file and line, and words that are not in the file."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from model.checkpoint import SHIPPED
from model.errors import LexiconError
from model.lexicon.letter_to_sound import LetterToSound
from model.lexicon.lexicon import Lexicon, write_lexicon

PHONES = ("b", "d", "eɪ", "i", "n", "æ")
WORDS = {"a": (("æ",), ("eɪ",)), "and": (("æ", "n", "d"), ("n",)), "b": (("b", "i"),), "it's": (("i",),)}
RULES = LetterToSound({"a": ("æ",), "ab": ("eɪ",), "b": ("b",), "n": ("n",), "s": ()})
LINES = ["tutti lexicon 1", "phones 2\tn æ", "words 2", "a\tæ", "an\tæ n\tn", "rules 2", "a\tæ", "n\tn"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "words.lexicon.gz"


@pytest.fixture
def lexicon(path: Path) -> Lexicon:
    write_lexicon(path, PHONES, WORDS, RULES.lines())
    return Lexicon.load(path)


def write(path: Path, lines: list[str]) -> None:
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))


def test_what_is_written_is_read(lexicon: Lexicon) -> None:
    assert lexicon.phones == PHONES
    assert dict(lexicon.words) == WORDS
    assert lexicon.rules == RULES


def test_the_same_content_gives_the_same_bytes_and_digest_and_other_content_another(
    path: Path, lexicon: Lexicon, tmp_path: Path
) -> None:
    again = tmp_path / "again.lexicon.gz"
    write_lexicon(again, reversed(PHONES), dict(reversed(WORDS.items())), RULES.lines())
    assert again.read_bytes() == path.read_bytes()
    assert Lexicon.load(again).digest == lexicon.digest
    write_lexicon(again, PHONES, WORDS)
    assert Lexicon.load(again).digest != lexicon.digest


def test_a_listed_word_has_its_pronunciations_and_any_other_one_by_the_rules(lexicon: Lexicon) -> None:
    assert lexicon.pronounce("and") == (("æ", "n", "d"), ("n",))
    assert lexicon.pronounce("nab") == (("n", "eɪ", "b"),)


def test_a_word_of_silent_letters_is_spelled_letter_by_letter() -> None:
    silent = Lexicon(PHONES, WORDS, "", LetterToSound({"a": (), "b": ()}))
    assert silent.pronounce("ab") == (("eɪ", "b", "i"),)


def test_a_word_without_a_vowel_in_a_key_term_is_also_said_by_the_names_of_its_letters() -> None:
    lexicon = Lexicon.load(SHIPPED.with_name("tutti-words.lexicon.gz"))
    assert lexicon.pronounce_term("gpt")[0] == ("dʒ", "i", "p", "i", "t", "i")
    assert lexicon.pronounce("gpt") in [(each,) for each in lexicon.pronounce_term("gpt")], "the rules' too"
    assert lexicon.pronounce_term("hello") == lexicon.pronounce("hello")
    assert lexicon.pronounce_term("dvd") == lexicon.pronounce("dvd"), "a word of the file"
    assert lexicon.pronounce_term("'") == ()


@pytest.mark.parametrize("word", ["", "'", "café", "b2", "a b"])
def test_a_text_that_is_not_a_word_of_letters_has_no_pronunciation(lexicon: Lexicon, word: str) -> None:
    assert lexicon.pronounce(word) == ()


@pytest.mark.parametrize(
    ("line", "text", "named"),
    [
        (1, "another file", ":1: expected 'tutti lexicon 1'"),
        (2, "phones 3\tn æ", ":2: expected 'phones', their number"),
        (2, "phones 2\tæ n", ":2: expected 'phones', their number"),
        (3, "words many", ":3: expected 'words' and their number"),
        (3, "words 3", ":6: expected a word"),
        (4, "a", ":4: expected a word"),
        (4, "b\tæ", ":5: expected a word"),
        (5, "an\tæ x", ":5: 'æ x' has a phone that the file does not list"),
        (6, "rule 2", ":6: expected 'rules' and their number"),
        (6, "rules 1", ":8: the file must end after 1 rules"),
        (6, "rules 9", ":8: the file must end after 9 rules"),
        (7, "a æ", ":7: expected a context"),
        (8, "n\tx", ":8: 'x' has a phone that the file does not list"),
        (8, "a\tn", ":8: expected a context"),
    ],
)
def test_the_error_for_a_damaged_line_names_it_and_a_remedy(path: Path, line: int, text: str, named: str) -> None:
    write(path, LINES)
    Lexicon.load(path)
    write(path, [*LINES[: line - 1], text, *LINES[line:]])
    with pytest.raises(LexiconError, match=named) as error:
        Lexicon.load(path)
    assert str(error.value).startswith(f"{path}:")
    assert "tutti_asr_lab.training.lexicon.build" in str(error.value)


@pytest.mark.parametrize("length", [1, 2, 5, 7])
def test_a_file_that_ends_early_is_refused(path: Path, length: int) -> None:
    write(path, LINES[:length])
    with pytest.raises(LexiconError, match=r"words\.lexicon\.gz:\d"):
        Lexicon.load(path)


@pytest.mark.parametrize(
    "content",
    [b"", b"tutti lexicon 1\n", gzip.compress(b"\xff\n", mtime=0), gzip.compress(b"x" * 99, mtime=0)[:-9]],
    ids=["empty", "not gzipped", "not UTF-8", "cut"],
)
def test_a_file_that_is_not_gzipped_text_is_refused_by_name(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(LexiconError, match=r"words\.lexicon\.gz"):
        Lexicon.load(path)


def test_a_missing_file_is_named(path: Path) -> None:
    with pytest.raises(LexiconError, match=r"cannot read lexicon .*words\.lexicon\.gz"):
        Lexicon.load(path)
