"""Spoken numbers in digits: cardinals, ordinals, decimals, years, digits in a row. Pure, English only.

A number is written as itself, or stays in words. The words are read in three steps: items ("seven", "sixty six", "two
hundred and five", "fourth"), runs of adjacent items, and runs that a sign joins ("one oh two point four"). A run is
one number if English has one reading of it: digits in a row (555), hundreds without the word (one sixty six, twelve oh
five), years, pairs (forty one eleven eleven). Otherwise its items are written apart, or stay words.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise

from server.text.line import Line, Span
from server.text.numbers.calendar import BEFORE_TIME
from server.text.numbers.number_words import LONG, POWERS, Item, NumberWords
from server.text.numbers.spoken_digits import DIGITS, ORDINALS, TEENS, TENS

Number = tuple[int, int, str]  # first word, end and text
SMALL = 4  # smaller numbers alone stay words: "one by one", "two or three"

_BELOW_100 = {*DIGITS, *TEENS, *TENS}
_PLURALS = {"hundreds", "thousands", "millions", "billions", "trillions"}
_PARTS = {"halves", "thirds", "fourths", "fifths", "sixths", "sevenths", "eighths", "ninths", "tenths", "hundredths"}
_SIGNS = {"point": ".", "dot": ".", "dash": "-", "hyphen": "-", "slash": "/"}
_CENTURIES = {"17", "18", "19", "20"}
_AFTER_INTERJECTION = {"dear", "god", "i", "man", "my", "no", "okay", "sorry", "wait", "well", "wow", "yeah", "yes"}
_ONE_UNIT = {  # "one twenty dollar bill", "two ten minute breaks": two numbers
    "cent", "dollar", "euro", "pound", "second", "minute", "hour", "day", "week", "month", "year", "inch",
    "foot", "yard", "mile", "meter", "kilometer", "ounce", "gallon", "liter", "watt", "volt", "page",
}  # fmt: skip
_IDENTIFIED = {  # things whose number may be read in pairs: "flight twelve thirty four"
    "apartment", "box", "bus", "code", "extension", "flight", "gate", "highway", "locker", "model", "passcode", "pin",
    "port", "room", "route", "suite", "train", "unit",
}  # fmt: skip


def numbers(line: Line, taken: Collection[int] = ()) -> list[Span]:
    """Return the numbers among the words that are not `taken`, in order; small ones too, which may stay words."""
    words = NumberWords(line, taken)
    runs = _Runs(words).numbers()
    return [Span(words.places[start], words.places[end - 1] + 1, text) for start, end, text in runs]


def together(texts: Sequence[str]) -> str:
    """Return number words as one number without spaces, "one ninety two" as 192; "" if there are other words."""
    items = list(NumberWords(Line.of(texts), ()).items())
    return _tight(items) if sum(item.end - item.start for item in items) == len(texts) else ""


class _Runs:
    """Runs of number words in a line."""

    def __init__(self, words: NumberWords) -> None:
        self._items = words
        self._words, self._shown = words.words, words.shown

    def numbers(self) -> Iterator[Number]:
        """Yield start, end and text of each number."""
        runs = list(self._runs())
        at = 0
        while at < len(runs):
            chain = [runs[at]]
            while at + len(chain) < len(runs) and self._continues(chain[-1], runs[at + len(chain)]):
                chain.append(runs[at + len(chain)])
            after = runs[at + len(chain)] if at + len(chain) < len(runs) else []
            if len(chain) == 1 and self._shares_power(chain[0], after):
                at += 2
                continue
            yield from self._chain(chain) if len(chain) > 1 else self._run(chain[0], after)
            at += len(chain)

    def _continues(self, run: list[Item], after: list[Item]) -> bool:
        signed = after[0].start == run[-1].end + 1 and self._words[run[-1].end] in _SIGNS
        return signed and run[-1].kind != "ordinal" and after[-1].kind != "ordinal"

    def _shares_power(self, run: list[Item], after: list[Item]) -> bool:
        """Whether two numbers share a power: "two or three hundred", "hundred and twenty"; both stay words."""
        first, end = run[-1], run[-1].end
        link = self._shown[end]
        if first.kind == "power" and link == "and" and after and after[0].start == end + 1:
            return True
        linked = link in ("or", "to") or (link == "and" and self._shown[first.start - 1] == "between")
        if not linked or len(run) > 1 or not after or after[0].start != end + 1 or after[0].kind != "large":
            return False
        value, stop = self._items.two_digits(end + 1)
        round_ = stop == after[0].end - 1 and self._words[stop] in ("hundred", "thousand")
        return round_ and first.kind in ("digit", "pair") and int(first.text) < value

    def _runs(self) -> Iterator[list[Item]]:
        run: list[Item] = []
        for item in self._items.items():
            if run and (item.start != run[-1].end or run[-1].kind == "ordinal"):
                yield run
                run = []
            run.append(item)
        if run:
            yield run

    def _run(self, run: list[Item], after: list[Item]) -> Iterator[Number]:
        run = self._without_interjections(run)
        if not run or any(item.kind == "power" for item in run) or self._shown[run[-1].end] in _PLURALS | _PARTS:
            return
        if run[-1].kind == "ordinal":
            yield from self._with_ordinal(run)
            return
        large = [item for item in run if item.kind == "large"]
        if not large:
            yield from self._serial(run, after)
        elif (whole := self._military(run) or self._line_number(run)) is not None:
            yield whole
        elif not self._is_ambiguous(run):
            serial: list[Item] = []
            for item in run:
                if item.kind == "large":
                    yield from self._serial(serial, []) if serial else ()
                    yield item.start, item.end, self._grouped(item)
                    serial = []
                else:
                    serial.append(item)
            yield from self._serial(serial, []) if serial else ()

    def _without_interjections(self, run: list[Item]) -> list[Item]:
        """Return a run without each "oh" at an end that is not a digit.

        It is one in a run of three or more: "oh seven nine". At the right end a pause must follow, or four be there.
        """
        several = sum(len(item.text) for item in run) > 2 and any(item.kind != "zero" for item in run)
        several = several and (len(run) > 2 or self._shown[run[-1].end] == "hours")
        after = self._shown[run[-1].end]
        paused = not after or (len(run) > 3 and after not in _AFTER_INTERJECTION)
        while run and run[-1].kind == "zero" and not (several and paused):
            run = run[:-1]
        while run and run[0].kind == "zero" and not several:
            run = run[1:]
        return run

    def _with_ordinal(self, run: list[Item]) -> Iterator[Number]:
        last = run[-1]
        hundreds = self._words[last.start] in TENS and last.end == last.start + 2 and len(run) == 2
        if len(run) == 1:
            before = self._shown[last.start - 1]
            if before not in ("a", "one") and self._words[last.start] not in ("first", "second", "third"):
                yield last.start, last.end, last.text
        elif hundreds and run[0].kind == "digit" and len(run[0].text) == 1:  # "one twenty first street"
            yield run[0].start, last.end, run[0].text + last.text
        elif self._words[last.start] not in ORDINALS:
            yield from self._run(run[:-1], [])
            yield last.start, last.end, last.text
        elif self._words[last.start] in ("first", "second", "third"):
            yield from self._run(run[:-1], [])

    def _military(self, run: list[Item]) -> Number | None:
        """Return a time of four digits: "oh eight hundred hours"."""
        first, last = run[0], run[-1]
        hundred = len(run) == 2 and self._words[last.end - 1] == "hundred" and last.end == last.start + 2
        said = self._shown[last.end] == "hours" or self._words[first.start] == "zero"
        if hundred and first.text == "0" and (said or self._shown[first.start - 1] in BEFORE_TIME):
            return first.start, last.end, f"0{last.text}"
        return None

    def _line_number(self, run: list[Item]) -> Number | None:
        """Return a telephone number that ends in a round one: "five five five two thousand"."""
        text, last = "".join(item.text for item in run), run[-1]
        serial = all(item.kind != "large" for item in run[:-1]) and len(run) > 3
        return (run[0].start, last.end, text) if serial and len(last.text) == 4 and len(text) in (7, 10, 11) else None

    def _is_ambiguous(self, run: list[Item]) -> bool:
        """Whether large numbers of a run have no one reading: "two three hundred", "four hundred five five"."""
        for at, (first, second) in enumerate(pairwise(run), start=1):
            approximate = second.kind == "large" and first.kind == "digit" and self._words[second.start] in DIGITS
            if approximate and (at == 1 or self._is_counted(run[: at + 1])):
                return True
            if second.kind == "large" and first.kind == "pair" and second.text[0] >= first.text[0]:
                return True
            split = self._words[first.end - 1] in _BELOW_100 and self._words[first.end - 2] in ("hundred", *POWERS)
            if first.kind == "large" and split and second.kind in ("digit", "zero", "pair"):
                return True
        return False

    def _is_counted(self, run: list[Item]) -> bool:
        """Whether digits count up to the one before "hundred": "three four five hundred"."""
        values = [int(item.text) for item in run[:-1]] + [int(run[-1].text) // 100]
        return all(second == first + 1 for first, second in pairwise(values))

    def _serial(self, run: list[Item], after: list[Item]) -> Iterator[Number]:
        """Yield digits and pairs as one number if they can only be one, otherwise each."""
        if self._is_list(run, after):
            yield from ((item.start, item.end, item.text) for item in run)
        elif len(run) == 1:
            item = run[0]
            doubled = item.kind == "digit" and len(item.text) > 1
            if not (doubled and self._shown[item.start - 1] in ("a", "the")):
                yield item.start, item.end, item.text
        elif self._is_one(run):
            yield from self._row(run)
        else:
            if self._shown[run[-1].end] in _ONE_UNIT and run[0].text in ("1", "2", "3"):
                run = run[1:]  # "one $20 bill"
            row: list[Item] = []
            for item in run:
                if item.kind == "pair":
                    yield from self._row(row)
                    yield item.start, item.end, item.text
                    row = []
                else:
                    row.append(item)
            yield from self._row(row)

    def _row(self, row: list[Item]) -> Iterator[Number]:
        if row:
            yield row[0].start, row[-1].end, "".join(item.text for item in row)

    def _is_list(self, run: list[Item], after: list[Item]) -> bool:
        """Whether items are counted or listed: "eight nine ten", "five ten or fifteen"."""
        if len(run) < 2 or any(item.text[0] == "0" for item in run):
            return False
        values = [int(item.text) for item in run]
        joined = len(after) == 1 and after[0].start == run[-1].end + 1 and after[0].kind in ("digit", "pair")
        if joined and self._words[run[-1].end] in ("or", "and"):
            values.append(int(after[0].text))
        elif all(item.kind == "digit" for item in run):
            return False
        steps = {second - first for first, second in pairwise(values)}
        return len(values) > 2 and min(steps) > 0 and (len(steps) == 1 or len(values) > len(run))

    def _is_one(self, run: list[Item]) -> bool:
        kinds = "".join("p" if item.kind == "pair" else "d" for item in run)
        before, after = self._shown[run[0].start - 1], self._shown[run[-1].end]
        if "p" not in kinds:
            return True
        timed = before in BEFORE_TIME and int(run[1].text) < 60
        if kinds == "dp" and (after in _ONE_UNIT or timed or run[0].text == "0"):
            return False
        if kinds.count("p") == 1 and kinds[0] == "d":  # "five seven eleven six" may be three numbers
            at = kinds.index("p")
            return at == 1 or at == len(run) - 1 or run[at + 1].text[0] == "0"
        if kinds.startswith("pd") and run[1].text[0] == "0" and len(run) > 2:  # "twelve oh five"
            return True
        if kinds == "pp" and (run[0].text in _CENTURIES or self._is_identified(run[0].start)):
            return True
        return kinds.count("p") > 1 and len(kinds) > 2

    def _is_identified(self, at: int) -> bool:
        near = [word for word in self._shown[max(0, at - 3) : at] if word not in ("is", "number")]
        return bool(near) and near[-1] in _IDENTIFIED

    def _grouped(self, item: Item) -> str:
        """Return a large number with its thousands set apart, and a round one with its power as a word: 2 million."""
        words, value = self._words[item.start : item.end], int(item.text)
        powers = [word for word in words if word in POWERS]
        if powers and powers != ["thousand"] and words[-1] in powers and len(powers) == 1:
            return f"{value // POWERS[powers[0]]} {powers[0]}"
        return f"{value:,}" if powers and value >= LONG else item.text

    def _chain(self, chain: list[list[Item]]) -> Iterator[Number]:
        """Yield a number with signs: a decimal, a version, an address, a date with slashes."""
        signs = [_SIGNS[self._words[run[-1].end]] for run in chain[:-1]]
        first, last = chain[0], chain[-1]
        if len(chain) == 2 and self._words[first[-1].end] == "point":
            last = self._without_power(last)
            whole = list(self._run(first, []))
            if len(whole) != 1 or whole[0][1] != first[-1].end:
                return
            pieces = [whole[0][2].replace(",", ""), _tight(last)]
            start = whole[0][0]
        else:
            pieces, start = [_tight(run) for run in chain], first[0].start
        if all(pieces):
            text = "".join(f"{piece}{sign}" for piece, sign in zip(pieces, [*signs, ""], strict=True))
            yield start, last[-1].end, text

    def _without_power(self, run: list[Item]) -> list[Item]:
        """Return the digits after a point without a power: "two point five million" is 2.5 million."""
        start, end = run[-1].start, run[-1].end
        value, stop = self._items.two_digits(start)
        return [*run[:-1], Item(start, stop, str(value), "digit")] if start < stop == end - 1 and value else run


def _tight(run: Sequence[Item]) -> str:
    """Return the items of a run without spaces; "" if it has items that are not read so."""
    if any(item.kind in ("ordinal", "power") for item in run):
        return ""
    return "".join(item.text for item in run)
