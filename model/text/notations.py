"""Numbers of written English as they are spoken, with units, money, times and fractions.

Takes folded text, `model.text.letters.folded`. Every token with a digit becomes words, and a letter next to a digit is
never joined to another word: "h2o" is "h two o", "10am" is "ten a m".
"""

from __future__ import annotations

import re

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_TEENS = ("ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen")
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_ORDINAL_OF = {
    "one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth",
    "twelve": "twelfth",
}  # fmt: skip
_DASHES = str.maketrans({"—": " ", "–": " ", "‑": "-", "−": "-", "⁄": "/", "×": "x"})
_UNITS = {  # as written after a number, in singular and plural
    "mm": ("millimeter", "millimeters"),
    "cm": ("centimeter", "centimeters"),
    "km": ("kilometer", "kilometers"),
    "mg": ("milligram", "milligrams"),
    "kg": ("kilogram", "kilograms"),
    "ml": ("milliliter", "milliliters"),
    "lb": ("pound", "pounds"),
    "lbs": ("pound", "pounds"),
    "oz": ("ounce", "ounces"),
    "ft": ("foot", "feet"),
    "kb": ("kilobyte", "kilobytes"),
    "mb": ("megabyte", "megabytes"),
    "gb": ("gigabyte", "gigabytes"),
    "tb": ("terabyte", "terabytes"),
    "hz": ("hertz", "hertz"),
    "khz": ("kilohertz", "kilohertz"),
    "mhz": ("megahertz", "megahertz"),
    "ghz": ("gigahertz", "gigahertz"),
    "kw": ("kilowatt", "kilowatts"),
    "kwh": ("kilowatt hour", "kilowatt hours"),
    "ms": ("millisecond", "milliseconds"),
    "min": ("minute", "minutes"),
    "hr": ("hour", "hours"),
    "hrs": ("hour", "hours"),
    "mph": ("mile per hour", "miles per hour"),
    "kph": ("kilometer per hour", "kilometers per hour"),
    "kmh": ("kilometer per hour", "kilometers per hour"),
    "km/h": ("kilometer per hour", "kilometers per hour"),
    "mbps": ("megabit per second", "megabits per second"),
    "gbps": ("gigabit per second", "gigabits per second"),
    "m2": ("square meter", "square meters"),
    "km2": ("square kilometer", "square kilometers"),
    "m3": ("cubic meter", "cubic meters"),
    "°c": ("degree celsius", "degrees celsius"),
    "°f": ("degree fahrenheit", "degrees fahrenheit"),
    "bn": ("billion", "billion"),
}
_COINS = {
    "$": ("dollar", "dollars"),
    "£": ("pound", "pounds"),
    "€": ("euro", "euros"),
    "¥": ("yen", "yen"),
    "₹": ("rupee", "rupees"),
    "¢": ("cent", "cents"),
}
_POWERS = {"k": "thousand", "m": "million", "bn": "billion", "b": "billion"}
_FRACTIONS = {"1/2": "one half", "1/4": "one quarter", "3/4": "three quarters"}
_PARTS = {"3": "third", "5": "fifth", "6": "sixth", "8": "eighth"}

_AMOUNT = r"\d+(?:,\d{3})*(?:\.\d+)?"
_COIN = "[" + "".join(_COINS) + "]"
_LARGE = r"\s(?:thousand|million|billion|trillion|hundred)\b"
_MONEY = re.compile(rf"({_COIN})\s?({_AMOUNT})(?:(k|m|bn|b)(?![a-z\d])|({_LARGE}))?")
_MONEY_AFTER = re.compile(rf"({_AMOUNT})({_LARGE})?\s?({_COIN})")
_CLOCK = re.compile(r"(?<![\d:.,])([01]?\d|2[0-4]):([0-5]\d)(?![\d:])(?:\s?([ap])\.?m\b\.?)?")
_HALF_DAY = re.compile(r"(?<=\d)\s?([ap])\.?m\b\.?")
_UNIT = re.compile(
    rf"({_AMOUNT})\s?(" + "|".join(map(re.escape, sorted(_UNITS, key=len, reverse=True))) + r")(?![a-z\d'])"
)
_FRACTION = re.compile(r"(?<![\d/.,])(\d{1,4})/(\d{1,4})(?![\d/]|[.,]\d)")
_MINUS = re.compile(r"(?<!\S)-(?=\d)")
_POINTS = re.compile(r"(?<![\d.])\d+(?:\.\d+){2,}(?![\d])")
_PIXELS = re.compile(r"(?<![a-z\d])(\d{1,2})(\d{2})p(?![a-z\d])")
_NUMBER = re.compile(rf"{_AMOUNT}(?:(?:st|nd|rd|th|s)(?![a-z\d]))?")
_MIXED = re.compile(r"[a-z\d]*(?:[a-z]\d|\d[a-z])[a-z\d]*")
_ENDING = re.compile(r"\d+(?:st|nd|rd|th|s)")
_RUN = re.compile(r"[a-z]+|\d+")


def expand_numbers(text: str) -> str:
    """Replace every token of folded text that has a digit by words."""
    text = text.translate(_DASHES)
    if not re.search(r"\d", text):
        return text
    text = _MONEY.sub(lambda at: _money(at[2], _POWERS.get(at[3] or "", (at[4] or "").strip()), at[1]), text)
    text = _MONEY_AFTER.sub(lambda at: _money(at[1], (at[2] or "").strip(), at[3]), text)
    text = re.sub(r"#\s?(?=\d)", "number ", text)
    text = _MINUS.sub("minus ", text)
    text = _CLOCK.sub(lambda at: f" {_clock(at[1], at[2], at[3])} ", text)
    text = _HALF_DAY.sub(lambda at: f" {at[1]} m ", text)
    text = _UNIT.sub(lambda at: f" {number(at[1])} {_UNITS[at[2]][at[1] != '1']} ", text)
    text = _FRACTION.sub(lambda at: f" {_fraction(at[1], at[2])} ", text)
    text = _POINTS.sub(lambda at: f" {' point '.join(_integer(part) for part in at[0].split('.'))} ", text)
    text = _PIXELS.sub(lambda at: f" {cardinal(int(at[1]))} {_last_two(at[2])} p ", text)
    text = _MIXED.sub(lambda at: at[0] if _ENDING.fullmatch(at[0]) else _parts(at[0]), text)
    return _NUMBER.sub(lambda at: f" {number(at[0])} ", text)


def number(text: str) -> str:
    """Spoken form of a written number: years in pairs, ordinals, decimals, long numbers digit by digit."""
    grouped, digits = "," in text, text.replace(",", "")
    if digits.endswith(("st", "nd", "rd", "th")):
        return _ordinal(int(float(digits[:-2])))
    if digits.endswith("s"):
        return _plural(number(digits[:-1]))
    whole, _, fraction = digits.partition(".")
    if fraction:
        return f"{_integer(whole)} point {_each(fraction)}"
    return _integer(whole) if grouped or not _is_year(whole) else _year(whole)


def _money(amount: str, power: str, coin: str) -> str:
    words = f"{number(amount)} {power}" if power else number(amount)
    return f" {words} {_COINS[coin][amount != '1' or bool(power)]} "


def _clock(hour: str, minute: str, half_day: str | None) -> str:
    said = cardinal(int(hour))
    if minute != "00":
        said += f" {_last_two(minute)}"
    if half_day:
        return f"{said} {half_day} m"
    return said if minute != "00" else said + (" o'clock" if 0 < int(hour) < 13 else " hundred")


def _fraction(above: str, below: str) -> str:
    if known := _FRACTIONS.get(f"{above}/{below}"):
        return known
    if below in _PARTS and 0 < int(above) < int(below):
        return f"{cardinal(int(above))} {_PARTS[below]}{'s' if above != '1' else ''}"
    return f"{number(above)} {number(below)}"  # "24/7", "9/11"


def _parts(mixed: str) -> str:
    """Split a token of letters and digits into words; a run of letters without a vowel is spelled out."""
    runs = (run if run[0].isdigit() or re.search("[aeiouy]", run) else " ".join(run) for run in _RUN.findall(mixed))
    return f" {' '.join(runs)} "


def _ordinal(value: int) -> str:
    hundreds, rest = divmod(value, 100)
    if not rest:
        return f"{_integer(str(value))}th"
    return f"{_integer(str(100 * hundreds))} and {ordinal(rest)}" if hundreds else ordinal(rest)


def _is_year(digits: str) -> bool:
    return len(digits) == 4 and (1100 <= int(digits) < 2000 or 2010 <= int(digits) < 2100)


def _year(digits: str) -> str:
    century, rest = int(digits[:2]), digits[2:]
    return f"{cardinal(century)} {'hundred' if rest == '00' else _last_two(rest)}"


def _last_two(digits: str) -> str:
    value = int(digits)
    if value == 0:
        return "hundred"
    return f"oh {cardinal(value)}" if value < 10 else cardinal(value)


def _integer(digits: str) -> str:
    value = int(digits)
    if len(digits) > 1 and digits[0] == "0":
        return _each(digits)
    if value < 1_000_000:
        return cardinal(value)
    if value < 1_000_000_000_000:
        millions, rest = divmod(value, 1_000_000)
        if millions >= 1000:
            billions, left = divmod(millions, 1000)
            head = f"{cardinal(billions)} billion" + (f" {cardinal(left)} million" if left else "")
        else:
            head = f"{cardinal(millions)} million"
        return head + (f" {cardinal(rest)}" if rest else "")
    return _each(digits)


def _each(digits: str) -> str:
    return " ".join(DIGITS[int(digit)] for digit in digits)


def _plural(words: str) -> str:
    return words[:-1] + "ies" if words.endswith("y") else words + "s"


def cardinal(number: int) -> str:
    """Return 0 <= number < 1,000,000 in words, British style ("two hundred and five")."""
    if not 0 <= number < 1_000_000:
        raise ValueError(f"{number} is not in the range 0 to 999,999")
    if number < 10:
        return DIGITS[number]
    if number < 20:
        return _TEENS[number - 10]
    if number < 100:
        tens, ones = divmod(number, 10)
        return _TENS[tens - 2] + (f" {DIGITS[ones]}" if ones else "")
    if number < 1000:
        hundreds, rest = divmod(number, 100)
        return f"{DIGITS[hundreds]} hundred" + (f" and {cardinal(rest)}" if rest else "")
    thousands, rest = divmod(number, 1000)
    link = " and " if 0 < rest < 100 else " "
    return f"{cardinal(thousands)} thousand" + (f"{link}{cardinal(rest)}" if rest else "")


def ordinal(number: int) -> str:
    """Return the ordinal of 1 <= number < 100 in words ("twenty first")."""
    *head, last = cardinal(number).split()
    regular = last[:-1] + "ieth" if last.endswith("y") else last + "th"
    last = _ORDINAL_OF.get(last, regular)
    return " ".join([*head, last])
