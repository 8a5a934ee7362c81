"""Numbers in Mandarin: which characters carry digits, what is masked with which label, and how sentences stay."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable

import pytest
from stdnum import luhn
from stdnum.cn import ric

from model.ctc.words import Word, joined
from server.text.announcements import CONTEXT_S
from server.text.numbers.chinese_digits import digits_of, parts
from server.text.numbers.spoken_digits import Part
from server.text.redaction import Redactor
from server.text.redaction_kinds import NumberLanguage, Redaction, number_language
from tests.support.audio.chinese_numbers import KINDS, number, read_out

CARD = "六二二二零二一二零零零零零零零零零零五"  # 19 digits, valid
PHONE = "幺三八零零幺三八零零零"
RESIDENT = "三六零四二六一九九一零一零一零零七一"  # the example of python-stdnum, 18 digits
PCI = frozenset({Redaction.PCI})


def spoken(text: str, at_s: float = 0.0) -> tuple[Word, ...]:
    """Return a word of a quarter of a second for each character, Latin words and numbers in digits as one."""
    pieces = re.findall(r"[a-zA-Z]+|[0-9]+|\S", text)
    return tuple(Word(piece, at_s + at / 4, at_s + at / 4 + 0.2, 1.0) for at, piece in enumerate(pieces))


def redactor(*kinds: Redaction, channels: int = 1) -> Redactor:
    return Redactor(frozenset(kinds) or PCI, channels, NumberLanguage.CHINESE)


def shown(words: Iterable[Word]) -> str:
    return joined(word.text for word in words)


def final(text: str, *kinds: Redaction) -> str:
    return shown(redactor(*kinds).final(0, spoken(text)))


@pytest.mark.parametrize(
    ("text", "digits"),
    [
        ("一三八零零幺三八零零零", "13800138000"), ("一百二十三", "123"), ("两千零五", "2005"), ("十二", "12"),
        ("三个八", "888"), ("一百二十三四五", "12345"), ("三万五千", "35000"), ("138零零138", "13800138"),
        ("三六零四叉", "3604X"), ("壹贰叁", "123"), ("１２三", "123"), ("廿三", "23"),
    ],
)  # fmt: skip
def test_digits_of_characters(text: str, digits: str) -> None:
    assert digits_of(list(text)) == digits
    assert digits_of([text]) == digits, "also where a word has several characters"


def test_digits_of_mixed_languages() -> None:
    assert digits_of(["一", "three", "八", "double", "four", "零"]) == "138440"


@pytest.mark.parametrize(
    ("text", "kinds", "expected"),
    [
        (f"我的卡号是{CARD}谢谢", [Redaction.PCI], "我的卡号是 [CREDIT_CARD_1] 谢谢"),
        (f"我的手机号是{PHONE}谢谢", [Redaction.PHONE], "我的手机号是 [PHONE_NUMBER_1] 谢谢"),
        (f"号码是{RESIDENT}谢谢", [Redaction.SSN], "号码是 [SSN_1] 谢谢"),
        (f"号码是{RESIDENT}谢谢", [Redaction.SSN, Redaction.PCI], "号码是 [SSN_1] 谢谢"),
        ("号码是62220212000谢谢", [Redaction.NUMBERS], "号码是 [NUMBER_1] 谢谢"),
        ("一共三百二十块钱", [Redaction.NUMBERS], "一共 [NUMBER_1] 块钱"),
        ("我有两个人在三楼等", [Redaction.PCI, Redaction.NUMBERS], "我有两个人在三楼等"),
        ("我有两个人在第三楼等", [Redaction.AGGRESSIVE], "我有 [NUMBER_1] 个人在第 [NUMBER_2] 楼等"),
        ("他们一样统一万一一定唯一", [Redaction.NUMBERS], "他们一样统一万一一定唯一"),
        ("我们统一安排", [Redaction.AGGRESSIVE], "我们统 [NUMBER_1] 安排"),
        ("尾号是四四二", [Redaction.PCI], "尾号是 [NUMBER_1]"),
        ("安全码是三二一谢谢", [Redaction.PCI], "安全码是 [NUMBER_1] 谢谢"),
        ("身份证后四位幺二三四谢谢", [Redaction.SSN], "身份证后 [NUMBER_1] 位 [NUMBER_2] 谢谢"),
        ("密码嗯三个八那个二再一个五谢谢", [Redaction.NUMBERS], "密码嗯 [NUMBER_1] 谢谢"),
        ("我的 number 是 one three eight 零零谢谢", [Redaction.NUMBERS], "我的 number 是 [NUMBER_1] 谢谢"),
        ("六二二二零二一二零零错零零零零零零零零五谢谢", [Redaction.PCI], "[NUMBER_1] 错 [NUMBER_2] 谢谢"),
        ("幺三八零零就三八零零零谢谢", [Redaction.PHONE], "[PHONE_NUMBER_1] 谢谢"),
    ],
)  # fmt: skip
def test_what_is_masked(text: str, kinds: list[Redaction], expected: str) -> None:
    assert final(text, *kinds) == expected


def test_marks_after_a_number_stay() -> None:
    words = (*spoken("号码是六二二"), Word("二。", 9.0, 9.1, 1.0))
    assert shown(redactor().final(0, words)) == "号码是 [NUMBER_1]。"


def test_a_number_in_several_finals_and_its_context() -> None:
    one = redactor(Redaction.PCI, channels=2)
    texts = [shown(one.final(0, spoken(CARD[at : at + 5], at * 1.0))) for at in range(0, 19, 5)]
    assert texts == ["[NUMBER_1]", "[NUMBER_1]", "[NUMBER_1]", "[CREDIT_CARD_1]"]
    assert shown(one.final(1, spoken("有效期是三月", 20.0))) == "有效期是 [NUMBER_2] 月"
    assert shown(one.final(1, spoken("三楼", 21.0 + CONTEXT_S))) == "三楼"


def test_groups_after_the_first_one_are_masked_whatever_follows_each() -> None:
    one, long = redactor(Redaction.PCI), "请您稍等我现在把它记一下"
    groups = ("一一一一谢谢", "二三四五收到", f"四幺{long}", f"六七八九{long}")
    texts = [shown(one.final(0, spoken(group, at * 15.0))) for at, group in enumerate(groups)]
    assert [text[:8] for text in texts] == ["[NUMBER_"] * 4
    one = redactor(Redaction.PCI)
    assert shown(one.final(0, spoken(f"一一一一{long}"))).startswith("一一一一"), "the first group"
    assert shown(one.final(0, spoken(f"二三四五{long}", 15.0))).startswith("[NUMBER_1]")


def test_a_number_that_was_asked_for_is_masked_after_a_long_pause() -> None:
    one = redactor(Redaction.PCI, channels=2)
    one.final(1, spoken("请说一下您的卡号"))
    assert shown(one.final(0, spoken("四幺请您稍等我现在把它记一下", 80.0))).startswith("[NUMBER_1]")


def test_amounts_and_dates_are_no_long_numbers() -> None:
    text = "三百块和二零二六年五月一共五百二十块钱"
    assert final(text, Redaction.PCI, Redaction.PHONE) == text
    assert final("一半的人", Redaction.AGGRESSIVE) == "[NUMBER_1] 的人"


def test_partials_show_no_digit() -> None:
    one = redactor(Redaction.PCI)
    words = spoken("我们统一要三个八好吗")
    texts = [shown(one.partial(0, words[:end])[0]) for end in range(1, len(words) + 1)]
    assert texts[3] == "我们统一"
    assert texts[5:8] == ["我们统一要 [NUMBER_1]"] * 3
    assert texts[-1] == "我们统一要 [NUMBER_1] 好吗"
    assert one.partial(0, words)[1] == 5


def test_languages_whose_numbers_are_known() -> None:
    assert number_language(["en-US"]) is NumberLanguage.ENGLISH
    assert number_language(["zh-CN"]) is number_language(["cmn", "en"]) is NumberLanguage.CHINESE
    for unknown in ([], ["es"], ["zh", "ja"], ["yue"]):
        assert number_language(unknown) is None


@pytest.mark.parametrize("seed", range(12))
def test_no_digit_of_240_numbers_is_in_any_partial_or_final(seed: int) -> None:
    """Cut into segments anywhere, with a partial after each character."""
    rng = random.Random(seed)
    for _ in range(20):
        kind = rng.choice(KINDS)
        text = f"号码是{read_out(number(kind, rng), rng)}谢谢"
        words, one, begin = spoken(text), redactor(kind), 0
        masked = 0
        while begin < len(words):
            end = min(len(words), begin + rng.randint(1, len(words)))
            for upto in range(begin + 1, end + 1):
                check_shown(one.partial(0, words[begin:upto])[0], text)
            segment = one.final(0, words[begin:end])
            check_shown(segment, text)
            masked += sum(word.text.startswith("[") for word in segment)
            assert not segment or (segment[0].start_s, segment[-1].end_s) == (
                words[begin].start_s,
                words[end - 1].end_s,
            )
            begin = end
        assert masked


def check_shown(words: Iterable[Word], text: str) -> None:
    left = [word.text for word in words if not word.text.startswith("[")]
    assert Part.NUMBER not in parts(left, in_number=True, ordinals=True), (text, left)


def test_the_numbers_of_these_tests_are_valid() -> None:
    rng = random.Random(1)
    for _ in range(50):
        assert luhn.is_valid(number(Redaction.PCI, rng))
        assert ric.calc_check_digit(one := number(Redaction.SSN, rng)) == one[-1]
        assert re.fullmatch(r"1[3-9][0-9]{9}", number(Redaction.PHONE, rng))
    assert luhn.is_valid(digits_of([CARD]))
    assert ric.is_valid(digits_of([RESIDENT]))
