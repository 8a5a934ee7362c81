"""Random numbers, times, dates and amounts in spoken words, drawn from the given generator. Knows no sentences."""

from random import Random

from model.text.notations import DIGITS, cardinal, ordinal

MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
)  # fmt: skip
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


def digit_string(rng: Random, length: int) -> str:
    """Return digits read one by one; one string in three says "oh" for zero and one in six has a "double"."""
    zero = "oh" if rng.random() < 0.33 else "zero"
    doubles = rng.random() < 0.17
    values = [rng.randrange(10) for _ in range(length)]
    words: list[str] = []
    for value in values:
        word = zero if value == 0 else DIGITS[value]
        if doubles and words and words[-1] == word:
            words[-1:] = ["double", word]
        else:
            words.append(word)
    return " ".join(words)


def small_number(rng: Random) -> str:
    """Return a number from two to ninety nine, small ones more often."""
    return cardinal(rng.randint(2, 12) if rng.random() < 0.5 else rng.randint(10, 99))


def number(rng: Random) -> str:
    """Return a number below a million, each order of magnitude about as often as the next."""
    return cardinal(rng.randrange(10 ** rng.randint(2, 6)))


def clock_time(rng: Random) -> str:
    """Return a time of day as said ("half past seven", "nine forty five")."""
    hour = cardinal(rng.randint(1, 12))
    style = rng.randrange(5)
    if style == 0:
        return f"{rng.choice(('half past', 'quarter past', 'a quarter to', 'quarter to'))} {hour}"
    if style == 1:
        return f"{rng.choice(('five', 'ten', 'twenty', 'twenty five'))} {rng.choice(('past', 'to'))} {hour}"
    if style == 2:
        return f"{hour} {cardinal(rng.randint(10, 59))}"
    if style == 3:
        return f"{hour} {rng.choice(('in the morning', 'in the evening', 'in the afternoon'))}"
    return rng.choice((hour, f"{hour} o'clock", "noon", "midnight", f"{hour} thirty", f"{hour} fifteen"))


def calendar_date(rng: Random) -> str:
    """Return a date as said, British or American, sometimes with weekday or year."""
    day, month = ordinal(rng.randint(1, 31)), rng.choice(MONTHS)
    date = rng.choice((f"the {day} of {month}", f"{month} {day}", f"{month} the {day}"))
    if rng.random() < 0.2:
        return f"{rng.choice(WEEKDAYS)} {date}"
    return f"{date} {year(rng)}" if rng.random() < 0.3 else date


def year(rng: Random) -> str:
    """Return a year as said ("nineteen eighty four", "twenty twenty six", "two thousand and three")."""
    value = rng.randint(1900, 2040)
    if 2000 <= value < 2010:
        return cardinal(value)
    century, rest = divmod(value, 100)
    if rest == 0:
        return f"{cardinal(century)} hundred"
    return f"{cardinal(century)} {'oh ' if rest < 10 else ''}{cardinal(rest)}"


def amount(rng: Random) -> str:
    """Return a sum of money."""
    unit = rng.choice(("dollars", "pounds", "euros"))
    value = rng.choice((rng.randint(2, 99), rng.randint(1, 40) * 25, rng.randint(100, 9999)))
    if value < 100 and rng.random() < 0.4:
        return f"{cardinal(value)} {unit} {cardinal(rng.randint(2, 99))}"
    return f"{cardinal(value)} {unit}"


def duration(rng: Random) -> str:
    """Return a span of time."""
    special = ("half an hour", "an hour", "an hour and a half", "a minute", "one minute", "a quarter of an hour")
    if rng.random() < 0.2:
        return rng.choice(special)
    count = cardinal(rng.choice((rng.randint(2, 12), rng.choice((15, 20, 25, 30, 40, 45, 50, 90)))))
    return f"{count} {rng.choice(('minutes', 'minutes', 'minutes', 'hours', 'seconds', 'days'))}"


def percentage(rng: Random) -> str:
    """Return a percentage."""
    return f"{cardinal(rng.choice((rng.randint(1, 20) * 5, rng.randint(2, 100))))} percent"
