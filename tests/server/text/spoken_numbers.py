"""English and Mandarin numbers written out in words, with the forms in which they may be written. Seeded generators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

Spoken = tuple[str, set[str]]
"""Words of a number, and its written forms besides the words themselves."""

ONES = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
]  # fmt: skip
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
POWERS = ((10**12, "trillion"), (10**9, "billion"), (10**6, "million"), (1_000, "thousand"))
ORDINALS = {"one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth",
            "twelve": "twelfth"}  # fmt: skip
MONTHS = [
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
]  # fmt: skip


def two(value: int) -> str:
    """Return a number below 100 in words."""
    if value < 20:
        return ONES[value]
    return TENS[value // 10 - 2] + (f" {ONES[value % 10]}" if value % 10 else "")


def cardinal(value: int, *, link: str = "", article: bool = False) -> str:
    """Return a number in words; `link`: "and " before its last part, `article`: "a hundred"."""
    if value < 100:
        return two(value)
    parts: list[str] = []
    for power, name in (*POWERS, (100, "hundred")):
        if value >= power:
            count = cardinal(value // power, link=link)
            parts.append(f"{'a' if article and not parts and value // power == 1 else count} {name}")
            value %= power
    return " ".join(parts) + (f" {link}{two(value)}" if value else "")


def forms(value: int) -> set[str]:
    """Return the ways to write a number in digits."""
    found = {str(value), f"{value:,}"}
    found |= {f"{value // power} {name}" for power, name in POWERS if value and not value % power}
    return found


def ordinal(value: int) -> Spoken:
    """Return an ordinal."""
    *first, last = cardinal(value).split()
    last = ORDINALS.get(last) or (f"{last[:-1]}ieth" if last.endswith("y") else f"{last}th")
    end = {1: "st", 2: "nd", 3: "rd"}.get(value % 10, "th") if value % 100 not in (11, 12, 13) else "th"
    return " ".join([*first, last]), {f"{value}{end}", f"{value:,}{end}"}


def digits(text: str, random: Random) -> str:
    """Return digits one by one."""
    zero = random.choice(["zero", "oh"])
    said = [zero if digit == "0" else ONES[int(digit)] for digit in text]
    return " ".join(said)


def _cardinal(random: Random) -> Spoken:
    value = random.randrange(10 ** random.randrange(1, 16))
    return cardinal(value, link=random.choice(["", "and "]), article=random.random() < 0.3), forms(value)


def _hundreds(random: Random) -> Spoken:
    """Twelve hundred and five."""
    value = random.choice([n for n in range(1_100, 10_000) if n % 1_000 >= 100])
    rest = f" {random.choice(['', 'and '])}{two(value % 100)}" if value % 100 else ""
    return f"{two(value // 100)} hundred{rest}", forms(value)


def _without_hundred(random: Random) -> Spoken:
    """One sixty six, twelve oh five."""
    head, tail = random.randrange(1, 10), random.randrange(1, 100)
    if tail < 10:
        return f"{two(head)} oh {two(tail)}", {f"{head}0{tail}"}
    return f"{two(head)} {two(tail)}", {f"{head}{tail}", f"{head}:{tail}"}


def _pairs(random: Random) -> Spoken:
    """Twelve oh five, forty one eleven eleven."""
    if random.random() < 0.4:
        head, tail = random.randrange(10, 100), random.randrange(1, 10)
        return f"{two(head)} oh {two(tail)}", {f"{head}0{tail}", f"{head}:0{tail}"}
    pairs = [random.randrange(10, 100) for _ in range(random.randrange(2, 9))]
    apart = " ".join(map(str, pairs))  # two pairs have two readings: 12:30 and 1230
    return " ".join(map(two, pairs)), {apart.replace(" ", ""), apart}


def _decimal(random: Random) -> Spoken:
    whole, places = (
        random.randrange(10 ** random.randrange(1, 5)),
        digits(f"{random.randrange(10_000):04}"[random.randrange(4) :], random),
    )
    said = cardinal(whole, link="and ") if random.random() < 0.5 else digits(str(whole), random)
    said = said.removeprefix("oh ") if said != "oh" else "zero"
    fraction = "".join(str(ONES.index(word)) if word != "oh" else "0" for word in places.split())
    return f"{said} point {places}", {f"{whole}.{fraction}"}


def _row(random: Random) -> Spoken:
    text = "".join(random.choice("0123456789") for _ in range(random.randrange(3, 17)))
    text = random.choice("123456789") + text[1:-1] + random.choice("123456789")
    said = digits(text, random)
    return said, {text}


def _dashed(random: Random) -> Spoken:
    parts = [
        "".join(random.choice("123456789") for _ in range(random.randrange(1, 5)))
        for _ in range(random.randrange(2, 5))
    ]
    sign, word = random.choice([("-", " dash "), ("/", " slash "), (".", " dot "), ("-", " hyphen ")])
    return word.join(digits(part, random) for part in parts), {sign.join(parts)}


def _year(random: Random) -> Spoken:
    year = random.randrange(1_700, 2_100)
    if 2_000 <= year < 2_010:
        return cardinal(year, link=random.choice(["", "and "])), {str(year)}
    rest = "hundred" if year % 100 == 0 else two(year % 100) if year % 100 > 9 else f"oh {two(year % 100)}"
    return f"{two(year // 100)} {rest}", {str(year)}


def _money(random: Random) -> Spoken:
    value, cents = random.randrange(2, 10 ** random.randrange(1, 8)), random.randrange(2, 100)
    name, sign = random.choice([("dollars", "$"), ("euros", "€"), ("yen", "¥"), ("rupees", "₹")])
    amounts = {f"{sign}{form}" for form in forms(value)}
    if sign in "$€" and random.random() < 0.5:
        return f"{cardinal(value)} {name} and {two(cents)} cents", {f"{sign}{value:,}.{cents:02}"}
    return f"{cardinal(value)} {name}", amounts


def _percent(random: Random) -> Spoken:
    said, written = random.choice([_cardinal, _decimal])(random)
    return f"{said} percent", {f"{form}%" for form in written}


def _time(random: Random) -> Spoken:
    hour, minute, noon = random.randrange(1, 13), random.randrange(60), random.choice("ap")
    said = f" {two(minute)}" if minute > 9 else f" oh {two(minute)}" if minute else ""
    return f"{two(hour)}{said} {noon} m", {f"{hour}:{minute:02} {noon}m" if minute else f"{hour} {noon}m"}


def _date(random: Random) -> Spoken:
    month, day = random.choice(MONTHS), random.randrange(1, 32)
    said, (written, *_) = ordinal(day)[0], ordinal(day)[1]
    year, years = _year(random)
    return f"{month} {said} {year}", {f"{month} {written} {form}" for form in years}


def _ordinal(random: Random) -> Spoken:
    said, written = ordinal(random.randrange(1, 10 ** random.randrange(1, 6)))
    return f"the {said}", {f"the {form}" for form in written}


def _telephone(random: Random) -> Spoken:
    number = [random.randrange(200, 1_000), random.randrange(200, 1_000), random.randrange(1_000, 10_000)]
    text = "".join(map(str, number))
    if random.random() < 0.3:
        head, tail = random.randrange(10, 100), random.randrange(1, 100)
        text = f"{text[:6]}{head}{tail:02}"
        end = f"{two(head)} {two(tail) if tail > 9 else 'oh ' + two(tail)}"
        return f"{digits(text[:6], random)} {end}", {text, f"{text[:3]}-{text[3:6]}-{text[6:]}"}
    return digits(text, random), {text, "-".join(map(str, number))}


ENGLISH: tuple[Callable[[Random], Spoken], ...] = (
    _cardinal, _hundreds, _without_hundred, _pairs, _decimal, _row, _dashed, _year, _money, _percent, _time, _date,
    _ordinal, _telephone,
)  # fmt: skip


def english(seed: int, count: int) -> Iterator[Spoken]:
    """Yield numbers of every kind."""
    random = Random(seed)
    for at in range(count):
        yield ENGLISH[at % len(ENGLISH)](random)


# Mandarin

NUMERALS = "零一二三四五六七八九"


def _chinese(value: int) -> str:
    """Return a number in Mandarin."""
    for power, name in ((10**8, "亿"), (10**4, "万")):
        if value >= power:
            rest = value % power
            filler = "零" if rest and rest < power // 10 else ""
            return _chinese(value // power) + name + filler + (_chinese(rest) if rest else "")
    said, zero = "", False
    for power, name in ((1_000, "千"), (100, "百"), (10, "十"), (1, "")):
        digit, value = divmod(value, power)
        if digit:
            one = digit == 1 and power == 10 and not said
            said += ("零" if zero and said else "") + ("" if one else NUMERALS[digit]) + name
        zero = not digit
    return said or "零"


def _chinese_cardinal(random: Random) -> Spoken:
    value = random.randrange(10, 10 ** random.randrange(2, 13))
    said = _chinese(value)
    if random.random() < 0.3 and said.startswith("二") and said[1] in "百千万亿":
        said = f"两{said[1:]}"
    return said, {str(value)}


def _chinese_tenths(random: Random) -> Spoken:
    """两千三, 一万六."""
    unit, name = random.choice([(100, "百"), (1_000, "千"), (10_000, "万"), (10**8, "亿")])
    first, last = random.randrange(1, 10), random.randrange(1, 10)
    return f"{NUMERALS[first]}{name}{NUMERALS[last]}", {str(first * unit + last * unit // 10)}


def _chinese_approximate(random: Random) -> Spoken:
    """五六百, 三四十万, 一万六七: they stay as said."""
    first = random.randrange(1, 9)
    two_numbers = NUMERALS[first] + NUMERALS[first + 1]
    forms = (two_numbers + random.choice("十百千万"), f"{two_numbers}十万", f"一万{two_numbers}", f"十{two_numbers}岁")
    return random.choice(forms), set()


def _chinese_decimal(random: Random) -> Spoken:
    whole, places = random.randrange(1_000), f"{random.randrange(1, 1_000):03}"
    said = f"{_chinese(whole)}点{''.join(NUMERALS[int(digit)] for digit in places)}"
    percent = random.random() < 0.5
    return ("百分之" if percent else "") + said, {f"{whole}.{places}{'%' if percent else ''}"}


def _chinese_row(random: Random) -> Spoken:
    text = "".join(random.choice("0123456789") for _ in range(random.randrange(3, 19)))
    one = random.choice("一幺")
    return "".join(one if digit == "1" else NUMERALS[int(digit)] for digit in text), {text}


def _chinese_date(random: Random) -> Spoken:
    year, month, day = random.randrange(1_900, 2_100), random.randrange(1, 13), random.randrange(1, 32)
    said = "".join(NUMERALS[int(digit)] for digit in str(year))
    return f"{said}年{_chinese(month)}月{_chinese(day)}日", {f"{year}年{month}月{day}日"}


def _chinese_time(random: Random) -> Spoken:
    hour, minute = random.randrange(1, 24), random.randrange(1, 60)
    end = random.choice(["半", "一刻", f"{'零' if minute < 10 else ''}{_chinese(minute)}分"])
    shown = end if end in ("半", "一刻") else f"{minute:02}分"
    return f"{_chinese(hour)}点{end}", {f"{hour}点{shown}"}


MANDARIN: tuple[Callable[[Random], Spoken], ...] = (
    _chinese_cardinal, _chinese_tenths, _chinese_approximate, _chinese_decimal, _chinese_row, _chinese_date,
    _chinese_time,
)  # fmt: skip


def mandarin(seed: int, count: int) -> Iterator[Spoken]:
    """Yield numbers of every kind."""
    random = Random(seed)
    for at in range(count):
        yield MANDARIN[at % len(MANDARIN)](random)
