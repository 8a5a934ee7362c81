"""Mandarin numbers as people write them: 二零二六年三月五号 as 2026年3月5号. Pure.

A run of number characters is written if it is one number, otherwise it stays: 一个人, 三四个, 五六百, 几百万, 十分.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from server.text.line import Span

_DIGITS = dict(zip("零〇一二两三四五六七八九幺", "0012234567891", strict=True))
_UNITS = {"十": 10, "百": 100, "千": 1_000}
_DIGIT = "[零〇一二三四五六七八九幺]"
_SIGN = "[零〇一二两三四五六七八九幺十百千万亿]"
_COUNT = "[一二两三四五六七八九]"
_SECTION = (
    rf"(?=[一二两三四五六七八九十])(?:{_COUNT}千)?(?:零?{_COUNT}百)?(?:零?{_COUNT}?十)?(?:零?[一二三四五六七八九])?"
)
_NUMBER = re.compile(
    rf"(?!$)(?:(?:(?:{_SECTION})(?<![百千]{_COUNT})万)?零?(?:{_SECTION})?(?<![百千]{_COUNT})(?<!零)亿)?"
    rf"(?:零?(?:{_SECTION})(?<![百千]{_COUNT})万)?零?(?:{_SECTION})?(?<!零)"
)
_TO_60 = r"(?:[一二三四五]?十[一二三四五六七八九]?|[零〇]?[一二三四五六七八九])"
_PATTERN = re.compile(
    rf"(?<!{_SIGN})(?:"
    rf"百分之(?P<percent>{_SIGN}+(?:点{_DIGIT}+)?)"
    rf"|(?P<hour>{_SIGN}{{1,3}})点(?:(?P<minute>{_TO_60})(?=分)|(?P<minutes>[二三四五]?十[一二三四五六七八九]?)"
    rf"|(?=半|钟|一刻|三刻))"
    rf"|(?P<address>{_DIGIT}{{2,}}(?:点{_DIGIT}+){{2,}})(?!{_SIGN}|点)"
    rf"|(?<!点)(?P<decimal>{_SIGN}+)点(?P<places>{_DIGIT}+)(?![十百千点分线滴])"
    rf"|(?P<after_noon>(?<=早上|下午|晚上|上午|中午|凌晨){_SIGN}{{1,3}}(?=点))"
    rf"|(?P<dated>{_SIGN}{{1,3}}(?=[月日号]))"
    rf"|(?P<row>{_DIGIT}{{3,}}|{_DIGIT}{{2}}(?=年)|[一二三四五六七八九幺]?[零〇幺]{_DIGIT}+)(?!{_SIGN})"
    rf"|(?P<number>{_SIGN}{{2,}}(?!几)|十(?=[年岁点元块米号个乘]|分钟))"
    rf")"
)
_IDIOMS = {"万一", "千万", "一百一"}


def chinese_numbers(words: Sequence[str]) -> list[Span]:
    """Return the words to write in digits, in order, without overlap."""
    begins: dict[int, int] = {}
    size = 0
    for at, word in enumerate(words):
        begins[size] = at
        size += len(word)
    begins[size] = len(words)
    spans: list[Span] = []
    for match in _PATTERN.finditer("".join(words)):
        text = _written(match)
        if text and match.start() in begins and match.end() in begins:
            spans.append(Span(begins[match.start()], begins[match.end()], text))
    return spans


def _written(match: re.Match[str]) -> str:
    """Return a match in digits; "" if it is not a number."""
    if match["percent"]:
        whole, point, places = match["percent"].partition("点")
        value = "100" if whole == "百" else _text_of(whole)
        return value and f"{value}{'.' if point else ''}{_row(places)}%"
    if match["hour"]:
        hour, minute = _text_of(match["hour"]), match["minute"] or match["minutes"] or ""
        zero = "0" if minute[:1] in ("零", "〇") else ""
        return hour and f"{hour}点{zero}{value_of(minute) if minute else ''}"
    if match["address"]:
        return ".".join(map(_row, match["address"].split("点")))
    if match["decimal"]:
        whole = _text_of(match["decimal"])
        return whole and f"{whole}.{_row(match['places'])}"
    if match["row"]:
        approximate = len(match["row"]) == 2 and int(_row(match["row"])) % 11 == 1  # 三四年: three or four years
        return "" if approximate else _row(match["row"])
    number = match["after_noon"] or match["dated"] or match["number"]
    return "" if match["number"] and number in _IDIOMS else _text_of(number)


def _row(text: str) -> str:
    return "".join(_DIGITS[character] for character in text)


def _text_of(text: str) -> str:
    """Return a number in digits, a digit or zero too; "" if the characters are none, as in 五六百 and 一百二万."""
    if _NUMBER.fullmatch(text):
        return str(value_of(text))
    is_row = len(text) == 1 or text[0] in "零〇" or any(character in "零〇幺" for character in text)
    return _row(text) if is_row and all(character in _DIGITS for character in text) else ""


def value_of(text: str) -> int:
    """Return the value of a number such as 一万两千. A digit at the end counts tenths of the unit before it: 两千三."""
    whole = section = thousands = digit = 0
    unit = 1
    for character in text:
        if character in _DIGITS:
            digit = int(_DIGITS[character])
            unit = unit if digit else 1
        elif character in _UNITS:
            unit = _UNITS[character]
            section += (digit or 1) * unit
            digit = 0
        elif character == "万":
            thousands, section, digit, unit = (section + digit or 1) * 10_000, 0, 0, 10_000
        else:
            whole, thousands = whole + (thousands + section + digit or 1) * 10**8, 0
            section, digit, unit = 0, 0, 10**8
    return whole + thousands + section + digit * max(unit // 10, 1)
