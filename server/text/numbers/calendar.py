"""Dates, years and times of day as they are said: "march fifth", "three thirty p m". Pure, English only."""

from __future__ import annotations

from collections.abc import Iterator

from server.text.line import Line, Span, whole_words
from server.text.numbers.spoken_digits import DIGITS, TEENS, TENS

MONTHS = {
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
}  # fmt: skip
BEFORE_TIME = {"at", "by", "till", "until", "before", "after", "around", "since"}
_FIRST = {"first": "1st", "second": "2nd", "third": "3rd"}
_DECADES = {
    "twenties": "20s", "thirties": "30s", "forties": "40s", "fifties": "50s", "sixties": "60s", "seventies": "70s",
    "eighties": "80s", "nineties": "90s",
}  # fmt: skip
_UNITS = "|".join(name for name in DIGITS if name != "zero")
_TEENS = "|".join(TEENS)
_TENS = "|".join(TENS)
_TWO = rf"(?:(?:{_TENS})(?: (?:{_UNITS}))?|{_TEENS}|{_UNITS})"
_HOUR = rf"(?:twenty(?: (?:one|two|three))?|{_TEENS}|{_UNITS})"
_MINUTE = rf"(?:(?:oh|o) (?:{_UNITS})|{_TEENS}|(?:twenty|thirty|forty|fifty)(?: (?:{_UNITS}))?)"
_DAY = rf"(?:thirty one|thirty|twenty(?: (?:{_UNITS}))?|{_TEENS}|{_UNITS})"
_MONTH = "|".join(sorted(MONTHS))
_NOT_A_TIME = (  # after two numbers that are not an hour and its minutes
    "hundred|thousand|million|billion|point|percent|dollars?|euros?|pounds?|cents|bucks|seconds?|minutes?|hours?|days?"
    rf"|weeks?|months?|years?|people|and|{_TWO}|oh|o|zero"
)
_WITH_NOON = whole_words(rf"(?P<hour>{_HOUR})(?: (?P<minute>{_MINUTE}))? (?P<noon>[ap]) ?m")
_PART_OF_DAY = "in the (?:morning|afternoon|evening)|tonight|today|tomorrow"
_WITH_PART = whole_words(rf"(?P<hour>{_HOUR}) (?P<minute>{_MINUTE})(?= (?:{_PART_OF_DAY})(?!\S))")
_AFTER_WORD = whole_words(
    rf"(?:{'|'.join(rf'(?<={word} )' for word in sorted(BEFORE_TIME))})"
    rf"(?P<hour>{_HOUR}) (?P<minute>{_MINUTE})(?! (?:{_NOT_A_TIME})(?!\S))"
)
_CLOCK = whole_words(rf"(?P<hour>{_UNITS}|ten|eleven|twelve)(?= o'?clock(?!\S))")
_DAY_AND_YEAR = whole_words(
    rf"(?:{_MONTH}) (?P<day>{_DAY})"
    rf"(?= (?:(?:nineteen|twenty) (?:{_TENS}|{_TEENS}|oh|o)|two thousand(?! (?:{_UNITS}) hundred))(?!\S))"
)
_FIRST_DAYS = whole_words(rf"(?:{_MONTH})(?P<the> the)? (?P<day>first|second|third)")
_FEW_DAYS = whole_words(
    rf"(?:(?:on|since|until|till|by|of|from|to) (?:{_MONTH})|(?:{'|'.join(sorted(MONTHS - {'march', 'may'}))})) "
    rf"(?P<day>one|two|three)(?!(?: |,)\S)"
)
_CENTURY = whole_words(rf"the (?P<century>{_TEENS}) hundreds")
_PAST = whole_words(
    r"(?:half|quarter|five|ten|twenty|twenty five|minutes) past (?P<hour>one|two|three)"
    r"|(?:quarter|minutes) to (?P<to>one|two|three)"
)
_DAY_OF = whole_words(rf"(?P<day>first|second|third)(?= of (?:{_MONTH})(?!\S))")
_DECADE = whole_words(
    rf"(?:(?P<century>eighteen|nineteen) |(?<=the )|(?<=early )|(?<=late ))(?P<decade>{'|'.join(_DECADES)})"
)


def times_and_dates(line: Line) -> Iterator[Span]:
    """Yield times of day, and dates that are not a number of their own; they may overlap, the first ones count."""
    for pattern in (_WITH_NOON, _WITH_PART, _AFTER_WORD):
        for start, end, match in line.matches(pattern):
            minute, noon = match["minute"], match.groupdict().get("noon")
            hour = two_digits(match["hour"])
            text = f"{hour}:{two_digits(minute).zfill(2)}" if minute else hour
            yield Span(start, end, f"{text} {noon}m" if noon else text)
    for _, end, match in line.matches(_PAST):
        yield Span(end - 1, end, DIGITS[match["hour"] or match["to"]])
    for start, end, match in line.matches(_CLOCK):
        yield Span(start, end, two_digits(match["hour"]))
    yield from _dates(line)


def _dates(line: Line) -> Iterator[Span]:
    for start, end, match in line.matches(_DAY_AND_YEAR):
        yield Span(start + 1, end, two_digits(match["day"]))
    for start, end, match in line.matches(_FIRST_DAYS):
        yield Span(start + 1 + bool(match["the"]), end, _FIRST[match["day"]])
    for _, end, match in line.matches(_FEW_DAYS):
        yield Span(end - 1, end, DIGITS[match["day"]])
    for start, end, match in line.matches(_CENTURY):
        yield Span(start + 1, end, f"{TEENS[match['century']]}00s")
    for start, end, match in line.matches(_DAY_OF):
        if line.before(start) not in TENS:
            yield Span(start, end, _FIRST[match["day"]])
    for start, end, match in line.matches(_DECADE):
        century = {"eighteen": "18", "nineteen": "19", None: ""}[match["century"]]
        yield Span(start, end, century + _DECADES[match["decade"]])


def two_digits(text: str) -> str:
    """Return a number below 100 in digits; "oh five" is 05."""
    first, _, rest = text.partition(" ")
    if first in ("oh", "o", "zero"):
        return "0" + DIGITS[rest] if rest else "0"
    if first in TENS:
        return TENS[first][0] + DIGITS[rest or "zero"]
    return TEENS.get(first) or DIGITS[first]
