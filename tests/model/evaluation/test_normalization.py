"""Normalization before comparison, and writing that only one side uses."""

import pytest

from model.errors import MissingPackage
from model.evaluation.normalization import normalizer, one_sided, remedy
from model.evaluation.scoring import score


def errors(name, reference, text):
    normalized = normalizer(name)
    return score(normalized(reference), normalized(text)).word_errors


@pytest.mark.parametrize(
    ("reference", "text"),
    [
        ("i am ten years old", "I'm 10 years old."),
        ("i am here", "I’m here"),  # a typographic apostrophe
        ("do not go", "Don't go!"),
        ("twenty one dollars", "$21"),
        ("the colour is grey", "The color is gray."),
        ("well we wait", "Well, uh, we wait."),
        ("café", "cafe"),
    ],
)
def test_english_compares_ways_of_writing_the_same_words(reference, text):
    assert errors("english", reference, text) == 0
    assert errors("english", text, reference) == 0


def test_english_does_not_hide_recognition_errors():
    assert errors("english", "ten of them", "two of them") == 1
    assert errors("english", "i am here", "i was here") == 1


def test_basic_ignores_case_and_punctuation_but_not_numbers():
    assert errors("basic", "i'm ready", "I'm ready.") == 0
    assert errors("basic", "ten", "10") == 1
    assert normalizer("basic")("हिन्दी।") == "हिन्दी"  # vowel signs stay


def test_none_counts_case_and_punctuation():
    assert errors("none", "one two", "One two.") == 2
    assert errors("none", "One  two.", "One two.") == 0


def test_without_the_package_english_names_the_extra(monkeypatch):
    monkeypatch.setattr("model.errors.find_spec", lambda _: None)
    with pytest.raises(MissingPackage, match=r"--normalize english needs whisper_normalizer: pip install .*evaluation"):
        normalizer("english")


@pytest.mark.parametrize(
    ("name", "reference", "text", "kind"),
    [
        ("none", "one", "One", "capitals"),
        ("none", "ONE", "One", "small letters"),
        ("none", "one two", "one, two", "punctuation"),
        ("none", "it's", "it’s", "typographic apostrophes"),
        ("basic", "it's", "its", "apostrophes"),
        ("basic", "café", "cafe", "accents"),
        ("basic", "ten", "10", "digits"),
    ],
)
def test_writing_of_one_side_alone_is_found_by_name(name, reference, text, kind):
    assert kind in one_sided(name, [reference], [text])
    assert kind in one_sided(name, [text], [reference])
    assert kind not in one_sided(name, [reference, text], [reference, text])


def test_what_is_found_is_counted_by_side():
    assert one_sided("basic", ["ten", "10", "ten"], ["10", "10", "ten"]) == {
        "digits": {"references": 1, "transcripts": 2}
    }


def test_a_single_word_recognized_without_its_apostrophe_is_no_kind_of_writing():
    assert one_sided("basic", ["it's", "don't"], ["its", "don't"]) == {}


def test_points_in_numbers_are_no_punctuation():
    assert "punctuation" not in one_sided("none", ["3.5"], ["three"])


def test_after_english_nothing_is_of_one_side():
    assert one_sided("english", ["10", "it's"], ["two", "its"]) == {}


def test_a_remedy_is_a_normalization_that_removes_the_difference():
    assert "--normalize basic" in remedy("none", "capitals")
    assert "--normalize english" in remedy("none", "digits")
    assert "--normalize english" in remedy("basic", "digits")
