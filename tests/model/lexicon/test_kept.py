"""A lexicon from its cache answers as the file does; another file, a damaged cache and a bad file are noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from model.errors import LexiconError
from model.lexicon.letter_to_sound import LetterToSound
from model.lexicon.lexicon import KeptWords, Lexicon, kept_lexicon, write_lexicon

PHONES = ("b", "d", "eɪ", "i", "n", "æ")
WORDS = {"a": (("æ",), ("eɪ",)), "and": (("æ", "n", "d"), ("n",)), "b": (("b", "i"),), "é": (("i",),)}
RULES = LetterToSound({"a": ("æ",), "ab": ("eɪ",), "b": ("b",), "n": ("n",), "s": ()})


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    file = tmp_path / "words.lexicon.gz"
    write_lexicon(file, PHONES, WORDS, RULES.lines())
    return file


def caches(path: Path) -> list[Path]:
    return sorted(path.parent.glob(f"{path.name}-*.lm"))


def test_a_kept_lexicon_answers_as_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, first = Lexicon.load(path), kept_lexicon(path)
    assert len(caches(path)) == 1
    monkeypatch.setattr(Lexicon, "load", lambda _: pytest.fail("the file was read again"))
    for found in (first, kept_lexicon(path)):
        assert isinstance(found.words, KeptWords)
        assert (found.phones, dict(found.words), found.digest, found.rules) == (
            whole.phones,
            dict(whole.words),
            whole.digest,
            whole.rules,
        )
        for word in (*WORDS, "nab", "an", "it", "", "zebra", "a\tæ", "è", "ê", "\ud800"):
            assert found.pronounce(word) == whole.pronounce(word), word
            assert (word in found.words) == (word in WORDS)


def test_another_file_of_the_name_is_read_anew(path: Path) -> None:
    kept_lexicon(path)
    write_lexicon(path, PHONES, {"b": (("b",),)})
    assert dict(kept_lexicon(path).words) == {"b": (("b",),)}
    assert len(caches(path)) == 2


@pytest.mark.parametrize("damage", [lambda content: content[:-40], lambda _: b"", lambda content: content[::-1]])
def test_a_damaged_cache_is_replaced(path: Path, damage) -> None:  # type: ignore[no-untyped-def]
    kept_lexicon(path)
    (cache,) = caches(path)
    whole = cache.read_bytes()
    cache.write_bytes(damage(whole))
    assert dict(kept_lexicon(path).words) == WORDS
    assert cache.read_bytes() == whole


def test_a_folder_that_cannot_be_written_does_not_matter(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("model.lexicon.lexicon.cache_dirs", lambda _: (Path("/proc/nowhere"),))
    assert dict(kept_lexicon(path).words) == WORDS
    assert not caches(path)


def test_a_bad_file_and_an_absent_one_are_named(path: Path) -> None:
    path.write_bytes(b"no gzip")
    with pytest.raises(LexiconError, match=str(path)):
        kept_lexicon(path)
    assert not caches(path)
    path.unlink()
    with pytest.raises(LexiconError, match=str(path)):
        kept_lexicon(path)
