"""Bank card, resident identity and mobile numbers of China, and ways in which people read them out in Mandarin."""

from __future__ import annotations

import datetime as dt
from random import Random

from stdnum import luhn
from stdnum.cn import ric

from server.text.redaction_kinds import Redaction

KINDS = (Redaction.PCI, Redaction.SSN, Redaction.PHONE)
NAMES = "零一二三四五六七八九"
_FILLERS = ("嗯", "那个", "是")


def number(kind: Redaction, rng: Random) -> str:
    """Return the digits of a valid number: a bank card (`pci`), a resident (`ssn`) or a mobile telephone."""
    if kind is Redaction.PCI:
        body = "62" + "".join(rng.choices("0123456789", k=rng.choice((13, 14, 15, 16))))
        return body + luhn.calc_check_digit(body)
    if kind is Redaction.SSN:
        born = dt.date(1950, 1, 1) + dt.timedelta(days=rng.randrange(25_000))
        body = f"{rng.choice(('110101', '310104', '440305', '360426'))}{born:%Y%m%d}{rng.randrange(1000):03}"
        return body + ric.calc_check_digit(body + "0")
    return f"1{rng.randint(3, 9)}{rng.randrange(10**9):09}"


def read_out(digits: str, rng: Random) -> str:
    """Return characters that say the digits: one by one, 幺 for 一, 三个八 for 888, in pairs, with fillers."""
    said: list[str] = []
    at = 0
    while at < len(digits):
        here = digits[at]
        same = next((size for size in range(1, 5) if digits[at + size : at + size + 1] != here), 1)
        style = rng.random()
        if here == "X":
            said.append(rng.choice(("叉", "X")) if said else "X")
            at += 1
        elif same > 1 and style < 0.4:
            said.append(f"{_count(same)}个{NAMES[int(here)]}")
            at += same
        elif style < 0.1 and len(digits) - at > 2 and here not in "0X" and digits[at + 1] not in "0X":
            said.append(f"{NAMES[int(here)] if here != '1' else ''}十{NAMES[int(digits[at + 1])]}")
            at += 2
        else:
            said.append("幺" if here == "1" and rng.random() < 0.6 else NAMES[int(here)])
            at += 1
        if at < len(digits) and rng.random() < 0.08:
            said.append(rng.choice(_FILLERS))
    return "".join(said)


def _count(size: int) -> str:
    return {2: "两", 3: "三", 4: "四"}[size]
