"""Syllables as initials and toned finals."""

from __future__ import annotations

import pytest

from model.errors import TrainingError
from tutti_asr_lab.training.lexicon.pinyin import are_syllables, phones_of, pronounce, readings, syllables_of
from tutti_asr_lab.training.lexicon.spoken import Pronunciations


@pytest.mark.parametrize(
    ("syllable", "phones"),
    [
        ("zhong1", ("zh", "ong1")),
        ("yi1", ("i1",)),
        ("wu3", ("u3",)),
        ("yuan4", ("van4",)),
        ("jiu3", ("j", "iou3")),
        ("gui4", ("g", "uei4")),
        ("nv3", ("n", "v3")),
        ("xue2", ("x", "ve2")),
        ("er2", ("er2",)),
        ("ma5", ("m", "a5")),
        ("de", ("d", "e5")),
        ("n2", ()),
        ("hold", ()),
        ("", ()),
    ],
)
def test_syllables_are_split_as_in_the_standard(syllable: str, phones: tuple[str, ...]) -> None:
    assert phones_of(syllable) == phones


def test_characters_have_all_readings_and_texts_those_of_their_context() -> None:
    assert set(readings("行")) >= {"xing2", "hang2"}
    assert readings("a") == readings("。") == ()
    assert syllables_of("银行行长") == ("yin2", "hang2", "hang2", "zhang3")
    assert are_syllables(syllables_of("天气很好"))
    assert not are_syllables(("call", "me"))


def test_the_error_names_a_word_that_is_not_a_syllable() -> None:
    assert pronounce(["ni3", "hao3"]) == {"ni3": ("n", "i3"), "hao3": ("h", "ao3")}
    with pytest.raises(TrainingError, match="'ap' is not a syllable"):
        pronounce(["ni3", "ap"])


def test_mandarin_phones_need_no_english_synthesizer() -> None:
    spoken = Pronunciations.of(["ni3 hao3", "hao3"], "zh")
    assert spoken.phones == ("ao3", "h", "i3", "n")
    assert spoken.target("hao3 ni3") == [2, 1, 4, 3]
