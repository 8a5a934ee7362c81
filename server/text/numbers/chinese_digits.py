"""Digits of numbers in Mandarin, word by word: 一三八, 幺, 三个八, 两千零五; English number words among them too. Pure.

Of the form of `spoken_digits`, which reads words in Latin letters. A word is a character, as Mandarin models
recognize them, or several: then it is a number if one of its characters is. Unlike `chinese_numerals`, which converts
only what is surely a number, this module finds every character that may carry a digit.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from itertools import groupby

from model.text.letters import has_ideographs
from server.text.numbers import spoken_digits
from server.text.numbers.chinese_numerals import value_of
from server.text.numbers.spoken_digits import Part

_DIGITS = dict(zip("零一二两三四五六七八九", "01223456789", strict=True))
_POWERS = "十百千万亿"
_OTHERS = dict(zip("〇幺俩仨壹贰貳叁參肆伍陆陸柒捌玖", "零一二三一二二三三四五六六七八九", strict=True))
_OTHERS |= zip("拾佰仟萬億", "十百千万亿", strict=True)
_FORMAL = str.maketrans(_OTHERS | {"廿": "二十", "卅": "三十"})
_CARRIERS = frozenset((*_DIGITS, *_POWERS, *_OTHERS, "廿", "卅"))
_CHECK = "叉"  # as X is read, the last sign of a resident identity number
_NO_NUMBERS = {
    "一样", "一定", "一些", "一下", "一般", "一边", "一面", "一旦", "一共", "一向", "唯一", "统一", "万一", "之一",
    "同一", "百分",
}  # fmt: skip
"""Words with a digit that carry no number, unless one is unfinished or every digit counts. Those that sound like two
digits are left out: a misrecognized 一七 may be 一起."""
_ALIKE = frozenset("要妖腰就酒久救吧把爸而儿耳其起气期事是市无物舞另令领以医衣意流留刘")
_LINKS = _ALIKE | frozenset("嗯啊呃额哦唔呀嘛呢和跟的再杠横点那这然后还有不对好")
"""Characters that do not end a number that is said in parts; `_ALIKE` sound like digits and may be misheard ones."""
_COUNTING = frozenset(_POWERS + "拾佰仟萬億廿卅")  # in amounts, and not where digits are read one by one
_AFTER_AMOUNTS = frozenset("块元角钱人年月日天周岁点秒米里斤克度次张件套家口本台辆层楼")
_FILLED = ("那", "这")
_MARKS = ".,;:?!\"'()[]…-–—，。？！、；：“”‘’（）《》"
_TIMES = re.compile(r"([二两三四五六七八九])个([零一二三四五六七八九])")  # 三个八 is 888
_COMPOSITE = re.compile(rf"(?:[一二两三四五六七八九]?[{_POWERS}]零?)+[一二三四五六七八九]?")


def plain(text: str) -> str:
    """Return a word without its capitals and the marks around it."""
    return text.strip(_MARKS).casefold()


def may_become_number(text: str) -> bool:
    """Whether an unfinished word may be the beginning of a number word; characters are whole."""
    return not _is_chinese(text) and spoken_digits.may_become_number(text)


def parts(texts: Sequence[str], *, in_number: bool, ordinals: bool, wary: bool = False) -> list[Part]:
    """Return the part of each word, as `spoken_digits.parts` does; `ordinals`: also of 一 in 一定."""
    sequence: list[Part] = []
    for at, text in enumerate(texts):
        before = texts[at - 1] if at else ""
        if _is_chinese(text):
            following = texts[at + 1] if at + 1 < len(texts) else "零" if wary else ""
            part = _part(text, before, following, in_number=in_number, anywhere=ordinals)
        elif text == "x" and in_number:
            part = Part.NUMBER
        else:
            following = texts[at + 1] if at + 1 < len(texts) else "zero" if wary else ""
            part = spoken_digits.part(text, before, following, in_number=in_number, ordinals=ordinals)
        sequence.append(part)
        in_number = part is Part.NUMBER or (in_number and part is Part.LINK)
    return sequence


def _part(text: str, before: str, following: str, *, in_number: bool, anywhere: bool) -> Part:
    if not in_number and not anywhere and not _NO_NUMBERS.isdisjoint((text, before + text, text + following)):
        return Part.OTHER
    if _carries_digits(text) or (anywhere and text == "半") or (in_number and text == _CHECK):
        return Part.NUMBER
    if text == "个" and before not in _FILLED and in_number and following:
        return Part.NUMBER if _carries_digits(following) else Part.OTHER
    if text == "个":  # of 那个; or 八 may follow 三个 in the next segment
        return Part.LINK if before in _FILLED or in_number else Part.OTHER
    return Part.LINK if _LINKS.issuperset(text) else Part.OTHER


def _is_chinese(text: str) -> bool:
    return not text.isascii() and (has_ideographs(text) or "〇" in text or text.isdigit())  # １２ too


def _carries_digits(text: str) -> bool:
    return any(character in _CARRIERS or character.isdigit() for character in text)


def sounds_like_digit(text: str) -> bool:
    """Whether a word is often a misheard digit: 要 for 幺."""
    return text in _ALIKE or spoken_digits.sounds_like_digit(text)


def read_singly(texts: Sequence[str]) -> bool:
    """Whether number words are digits one by one, as amounts are not: 一三八, 三个八."""
    joined = "".join(text for text in texts if _is_chinese(text))
    return _COUNTING.isdisjoint(joined) and spoken_digits.read_singly([text for text in texts if text.isascii()])


def is_amount(texts: Sequence[str], following: Sequence[str], before: str = "") -> bool:
    """Whether number words, between others, are an amount or a date: 三百块, 二零二六年."""
    text = "".join(texts)
    if not text.isascii() and following and following[0][:1] in _AFTER_AMOUNTS:
        composite = _COMPOSITE.fullmatch(text.translate(_FORMAL)) is not None
        return composite or len(text) == 1 or (following[0][0] == "年" and len(text) in (2, 4))
    return text.isascii() and spoken_digits.is_amount(texts, following, before)


def counts_digits(texts: Sequence[str], following: Sequence[str]) -> bool:
    """Whether this says how many digits there are; in Mandarin numbers before 位 are masked."""
    return spoken_digits.counts_digits(texts, following)


def digits_of(texts: Sequence[str]) -> str:
    """Return the digits of number words, given as `plain` returns them: 一百二十 is 120, 三个八 888, 叉 X.

    Meant for counting and checksums, as `spoken_digits.digits_of`.
    """
    digits: list[str] = []
    for chinese, group in groupby(texts, key=lambda text: _is_chinese(text) or text == "x"):
        read = _digits if chinese else spoken_digits.digits_of
        digits.append(read(list(group)))
    return "".join(digits)


def _digits(texts: Sequence[str]) -> str:
    text = "".join(texts).translate(_FORMAL)
    text = _TIMES.sub(lambda match: match[2] * int(_DIGITS[match[1]]), text)
    text = _COMPOSITE.sub(lambda match: str(value_of(match[0])), text)
    return "".join(map(_digit, text))


def _digit(character: str) -> str:
    if character in (_CHECK, "x"):
        return "X"
    return _DIGITS.get(character) or (str(unicodedata.digit(character)) if character.isdigit() else "")
