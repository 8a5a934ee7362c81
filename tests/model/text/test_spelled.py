"""Normalization of written English to spoken words."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.text.letters import IDEOGRAPHS, has_ideographs, unspellable
from model.text.spelled import as_written, spoken


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
        # numbers with letters next to them
        ("at 10am or 5 p.m.", "at ten a m or five p m"),
        ("I am 10, am I?", "i am ten am i"),
        ("10:30pm, 9:05 and 7:00", "ten thirty p m nine oh five and seven o'clock"),
        ("at 8:00am", "at eight a m"),
        ("10kg and 1 kg", "ten kilograms and one kilogram"),
        ("5km at 60km/h", "five kilometers at sixty kilometers per hour"),
        ("16GB, 3.5GHz", "sixteen gigabytes three point five gigahertz"),
        ("20°C", "twenty degrees celsius"),
        ("a 4k screen of 1080p", "a four k screen of ten eighty p"),
        ("720p", "seven twenty p"),
        ("H2O and CO2", "h two o and co two"),
        ("3M, 5G and MP3", "three m five g and m p three"),
        ("the A320 and GPT-4", "the a three hundred and twenty and gpt four"),
        ("covid19", "covid nineteen"),
        ("100x", "one hundred x"),
        ("open 24/7", "open twenty four seven"),
        ("1/2 of 3/4, ⅓", "one half of three quarters one third"),
        ("Windows 11", "windows eleven"),
        ("version 1.2.3", "version one point two point three"),
        ("2€, 1 €, 50¢ and £2bn", "two euros one euro fifty cents and two billion pounds"),
        ("$5m, $3k, $1", "five million dollars three thousand dollars one dollar"),
        ("-5 or 10–12", "minus five or ten twelve"),
        ("#1", "number one"),
        ("٣ and １２", "three and twelve"),
        # Chinese: each character is a word
        ("打开WiFi", "打 开 wifi"),
        ("1998年有3.5%", "一 九 九 八 年 有 百 分 之 三 点 五"),
        ("12个，105个，10,010元", "十 二 个 一 百 零 五 个 一 万 零 一 十 元"),
        ("２０个和0元", "二 十 个 和 零 元"),
        ("电话13800138000", "电 话 一 三 八 零 零 一 三 八 零 零 零"),
        # letters with strokes, ligatures, other forms
        ("Ærø, Þór, Đặng, ħ, ŧ, ƒ", "aero thor dang h t f"),
        ("ﬁne ＡＢＣ №", "fine abc no"),
        ("straße STRASSE", "strasse strasse"),
    ],
)
def test_texts_are_spelled_as_spoken(written: str, said: str) -> None:
    assert spoken(written) == said


@given(st.text(max_size=60))
def test_normalized_text_has_only_the_models_letters_and_normalizing_is_idempotent(text: str) -> None:
    said = spoken(text)
    letters = r"(?:[a-z]+(?:'+[a-z]+)*(?: |$))*"
    if has_ideographs(text + said):  # ㈠ has one in compatible form
        letters = f"(?:(?:[a-z]+(?:'+[a-z]+)*|[{IDEOGRAPHS}])(?: |$))*"
    assert re.fullmatch(letters, said), said
    assert spoken(said) == said


@pytest.mark.parametrize(
    ("text", "letters"),
    [
        ("plain words, 24/7 & €5", ""),
        ("Łódź, Ærø, straße, ﬁne, ＡＢＣ", ""),
        ("打开 コーヒー", ""),
        ("Ἀθῆναι", "Ἀθῆναι"),
        ("Москва moscow", "Москва"),
        ("서울", "서울"),
        ("שלום", "שלום"),
    ],
)
def test_letters_of_other_alphabets_are_listed(text: str, letters: str) -> None:
    assert unspellable(text) == letters


@pytest.mark.parametrize(
    ("token", "following", "written"),
    [
        ("Egypt.", "He", "Egypt."),
        ("\u201cMcDonald\u2019s,\u201d", "he", "McDonald's,"),
        ("Why?!", "", "Why?"),
        ("left!", "", "left."),
        ("and...", "then", "and,"),
        ("and...", "Then", "and."),
        ("yes;", "no", "yes,"),
        ("café:", "a", "café,"),
        ("well-known", "man", "well known"),
        ("U.S.", "troops", "U S"),
        ("Mr.", "Smith", "Mister"),
        ("J.", "Smith", "J."),
        ("4th.", "He", "fourth."),
        ("3.50,", "he", "three point five zero,"),
        ("iPhone", "is", "iPhone"),
        ("--", "no", ""),
    ],
)
def test_words_have_the_capitals_and_the_mark_of_their_token(token: str, following: str, written: str) -> None:
    assert as_written(token, spoken(token).split(), continues=following.islower()) == written.split()
