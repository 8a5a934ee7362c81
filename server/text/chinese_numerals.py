"""Mandarin numbers as people write them: 二零二六年三月五号 as 2026年3月5号. Pure.

Conservative: 一个人, 三四个, 十分 and 星期一 stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from server.text.line import Span

_DIGITS = dict(zip("零〇一二两三四五六七八九幺", "0012234567891", strict=True))
_UNITS = {"十": 10, "百": 100, "千": 1_000}
_LARGE = {"万": 10_000, "亿": 100_000_000}
_DIGIT = "[零〇一二两三四五六七八九幺]"
_NUMBER = "[零〇一二两三四五六七八九十百千万亿]"
_PATTERN = re.compile(
    rf"百分之(?P<percent>{_NUMBER}+(?:点{_DIGIT}+)?)"
    rf"|(?P<decimal>{_NUMBER}+)点(?P<places>{_DIGIT}+)(?![十分钟])"
    rf"|(?P<row>{_DIGIT}{{3,}}|{_DIGIT}{{2}}(?=年)|[一二三四五六七八九幺]?[零〇幺]{_DIGIT}+)(?![十百千万亿])"
    rf"|(?P<hour>(?<=早上|下午|晚上|上午|中午|凌晨){_NUMBER}{{1,3}}(?=点)|{_NUMBER}{{1,3}}(?=点(?:半|钟|{_NUMBER}{{1,3}}分)))"
    rf"|(?P<dated>{_NUMBER}{{1,3}}(?=[月日号]))"
    rf"|(?P<number>{_NUMBER}{{2,}}|十(?=[年岁点元块米号个]))"
)
_IDIOMS = {"十分", "万一", "千万", "一一", "百万", "千千万万", "一百一"}


def chinese_numbers(words: Sequence[str]) -> list[Span]:
    """Return the words to write in digits, in order, without overlap."""
    begins: dict[int, int] = {}
    size = 0
    for at, word in enumerate(words):
        begins[size] = at
        size += len(word)
    begins[size] = len(words)
    found: list[Span] = []
    for match in _PATTERN.finditer("".join(words)):
        text = _written(match)
        if text and match.start() in begins and match.end() in begins:
            found.append(Span(begins[match.start()], begins[match.end()], text))
    return found


def _written(match: re.Match[str]) -> str:
    """Return a match in digits; "" if it is not a number."""
    if match["percent"]:
        whole, point, places = match["percent"].partition("点")
        return f"{value_of(whole)}{'.' if point else ''}{_row(places)}%"
    if match["decimal"]:
        return f"{value_of(match['decimal'])}.{_row(match['places'])}"
    if match["row"]:
        return _row(match["row"])
    number = match["hour"] or match["dated"] or match["number"]
    if match["number"] and (number in _IDIOMS or not (set(number) & (_UNITS.keys() | _LARGE.keys()))):
        return ""
    return str(value_of(number))


def _row(text: str) -> str:
    return "".join(_DIGITS[character] for character in text)


def value_of(text: str) -> int:
    """Return the value of a number such as 一万两千."""
    total = section = digit = 0
    for character in text:
        if character in _DIGITS:
            digit = int(_DIGITS[character])
        elif character in _UNITS:
            section += (digit or 1) * _UNITS[character]
            digit = 0
        else:
            total = (total + section + digit or 1) * _LARGE[character]
            section = digit = 0
    return total + section + digit
