"""Lexicon from a table of words and phones: parsing, errors of bad lines, letters beyond a-z."""

from __future__ import annotations

from pathlib import Path

import pytest

from model.errors import LexiconError, TrainingError
from model.lexicon.lexicon import Lexicon
from tests.support.needs import need_programs
from tutti_asr_lab.training.lexicon import espeak
from tutti_asr_lab.training.lexicon.spoken import Pronunciations
from tutti_asr_lab.training.lexicon.table import MOST_PHONES, Summary, build


def made(folder: Path, text: str, voice: str | None = None) -> tuple[Summary, Lexicon]:
    (folder / "words.tsv").write_text(text, encoding="utf-8")
    summary = build(folder / "words.tsv", folder / "es.lexicon.gz", voice)
    return summary, Lexicon.load(folder / "es.lexicon.gz")


def test_words_keep_their_pronunciations_and_rules_cover_their_letters(tmp_path: Path) -> None:
    summary, lexicon = made(tmp_path, "año\ta ɲ o\n\nno\tn o\nuña\tu ɲ a\tu n i a\nsí\ts i\n")
    assert dict(lexicon.words) == {
        "año": (("a", "ɲ", "o"),),
        "no": (("n", "o"),),
        "uña": (("u", "ɲ", "a"), ("u", "n", "i", "a")),
        "sí": (("s", "i"),),
    }
    assert summary.words == 4
    assert summary.phones == lexicon.phones == ("a", "i", "n", "o", "s", "u", "ɲ")
    assert "".join(summary.letters) == "anosuíñ"
    assert lexicon.pronounce("ñoña") == (("ɲ", "o", "ɲ", "a"),)
    assert lexicon.pronounce("ñandú") == (), "no word of the table has ú"


def test_words_without_phones_are_pronounced_by_espeak_in_the_languages_voice(tmp_path: Path) -> None:
    need_programs("espeak-ng")
    _, lexicon = made(tmp_path, "niño\nya\tʝ a\n", "es")
    assert lexicon.words["niño"] == (("n", "i", "ɲ", "o"),)
    assert lexicon.words["ya"] == (("ʝ", "a"),)


def test_words_without_phones_are_refused_without_espeak_or_a_voice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(LexiconError, match=r"words.tsv: 'niño' has no phones; give them, or use --voice"):
        made(tmp_path, "niño\n")
    monkeypatch.setattr(espeak, "SPEAK", ("no-such-program",))
    with pytest.raises(TrainingError, match=r"espeak-ng .*, with the voice es"):
        made(tmp_path, "niño\n", "es")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no words"),
        ("a b\ta\n", r"words.tsv:1: expected a word, a tab and phones"),
        ("a\ta\nb\t\n", r"words.tsv:2: expected a word, a tab and phones"),
        ("a\ta\na\tb\n", r"words.tsv:2: duplicate word 'a'"),
        ("a\t" + " ".join(map(str, range(MOST_PHONES + 1))) + "\n", f"has {MOST_PHONES + 1} phones"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused_by_file_and_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(LexiconError, match=said):
        made(tmp_path, text)


def test_texts_are_pronounced_by_the_lexicon_and_the_network_gets_its_phones(tmp_path: Path) -> None:
    _, lexicon = made(tmp_path, "año\ta ɲ o\nno\tn o\nsí\ts i\n")
    spoken = Pronunciations.of(["no no", "año"], "es", lexicon)
    assert spoken.phones == lexicon.phones, "also phones that no text has, because the language model may have them"
    assert [spoken.phones[phone - 1] for phone in spoken.target("año no")] == ["a", "ɲ", "o", "n", "o"]
    with pytest.raises(TrainingError, match="cannot pronounce 1 words: ¿qué"):
        Pronunciations.of(["¿qué no"], "es", lexicon)
    with pytest.raises(TrainingError, match="of 'es' are not built in"):
        Pronunciations.of(["no"], "es")
