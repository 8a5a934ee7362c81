"""Normalisation of written English to spoken words."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.ctc.tokens import IDEOGRAPHS, has_ideographs
from model.lm_training.gathering.texts import sentences_of
from model.lm_training.normalize import spoken


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("Dr. Smith isn't here.", "doctor smith isn't here"),
        ("“It’s late,” he said—twice.", "it's late he said twice"),
        ("the 'quoted' boys' words", "the quoted boys words"),
        ("a well-known café in Łódź", "a well known cafe in lodz"),
        ("In 1984, 42 people", "in nineteen eighty four forty two people"),
        ("1905 and 2003 and 2015", "nineteen oh five and two thousand and three and twenty fifteen"),
        ("the 1990s", "the nineteen nineties"),
        ("It cost $3.50 or £1,200", "it cost three point five zero dollars or one thousand two hundred pounds"),
        ("$3 million", "three million dollars"),
        ("the 21st of 100%", "the twenty first of one hundred percent"),
        ("the 121st and the 200th", "the one hundred and twenty first and the two hundredth"),
        ("R&D", "r and d"),
        ("code 007", "code zero zero seven"),
        ("1893, the", "eighteen ninety three the"),
        ("3,500,000 stars", "three million five hundred thousand stars"),
        ("Mr. and Mrs. Bennet; etc.", "mister and missus bennet etcetera"),
        ("he said no.", "he said no"),
        ("?!", ""),
    ],
)
def test_texts_are_spelled_as_spoken(written: str, said: str) -> None:
    assert spoken(written) == said


@given(st.text(max_size=60))
def test_normalised_text_has_only_the_models_letters_and_normalising_is_idempotent(text: str) -> None:
    said = spoken(text)
    letters = r"(?:[a-z]+(?:'+[a-z]+)*(?: |$))*"
    assert re.fullmatch(f"[{IDEOGRAPHS} ]+" if has_ideographs(text) else letters, said), said
    assert spoken(said) == said


def test_sentences_end_at_points_but_not_at_those_of_abbreviations() -> None:
    text = 'Mr. Bennet replied. "Is that\nhis design?" She did; he had not.'
    assert [spoken(part) for part in sentences_of(text)] == [
        "mister bennet replied",
        "is that his design",
        "she did",
        "he had not",
    ]
