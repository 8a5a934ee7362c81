"""Numbers in words: which are masked, with which label, and where they end."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.ctc.words import Word
from server.errors import BadParameter
from server.text.announcements import CONTEXT_S
from server.text.numbers import spoken_digits
from server.text.numbers.digit_runs import RUN_S
from server.text.numbers.spoken_digits import Part, digits_of, part, parts
from server.text.redaction import Redactor
from server.text.redaction_kinds import CARD as CARD_LABEL
from server.text.redaction_kinds import NumberLanguage, Redaction, kinds_of, label_of

CARD = "four five three nine one four eight eight oh three four three six four six seven"  # 4539 1488 0343 6467
PCI = frozenset({Redaction.PCI})


def spoken(text: str, at_s: float = 0.0) -> tuple[Word, ...]:
    """Return words of half a second each."""
    return tuple(Word(word, at_s + i / 2, at_s + i / 2 + 0.4, 1.0) for i, word in enumerate(text.split()))


def final(text: str, kinds: Iterable[Redaction] = PCI) -> str:
    """Return one final of a new stream as it is shown."""
    return shown(Redactor(frozenset(kinds), 1).final(0, spoken(text)))


def shown(words: Iterable[Word]) -> str:
    """Return the text of words."""
    return " ".join(word.text for word in words)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"my card is {CARD} thanks", "my card is [CREDIT_CARD_1] thanks"),
        ("it ends with four four two", "it ends with [NUMBER_1]"),
        ("we are two people at table nine tonight", "we are two people at table nine tonight"),
        ("this is the one", "this is the one"),
        ("oh", "oh"),
        ("the security code is one two three thanks", "the security code is [NUMBER_1] thanks"),
        ("4539 1488 0343 6467.", "[CREDIT_CARD_1]."),
        ("forty five thirty nine fourteen eighty eight uh oh three four three and six four six seven Sir",
         "[CREDIT_CARD_1] Sir"),
        ("one two three four five six seven eight nine oh one two items", "[NUMBER_1] items"),
    ],
)  # fmt: skip
def test_card_numbers_are_masked_and_short_finished_ones_are_shown(text: str, expected: str) -> None:
    assert final(text) == expected


@pytest.mark.parametrize("kind", Redaction)
def test_a_number_is_masked_from_its_shortest_length_on(kind: Redaction) -> None:
    least = {Redaction.PCI: 12, Redaction.SSN: 8, Redaction.PHONE: 7, Redaction.NUMBERS: 3, Redaction.AGGRESSIVE: 1}
    for size in range(1, 18):
        digits = ("four two seven three nine " * 4).split()[:size]
        assert ("[" in final(f"well {' '.join(digits)} items are there now and then", [kind])) == (size >= least[kind])


@pytest.mark.parametrize(("size", "is_card"), [(12, False), (13, True), (19, True), (20, False)])
def test_a_card_number_has_13_to_19_digits(size: int, *, is_card: bool) -> None:
    """A number with a correct check digit whose first and last 15, 16 and 19 digits have none."""
    digits = {12: "325288874283", 13: "1771854261117", 19: "9174719488946448514", 20: "77369628923976818155"}
    assert (label_of(digits[size], PCI, NumberLanguage.ENGLISH) == CARD_LABEL) is is_card


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (Redaction.SSN, "five three six nine oh four three nine nine is it", "[SSN_1] is it"),
        (Redaction.SSN, "the last four of my social are one two three four sir", "[NUMBER_1] sir"),
        (Redaction.PHONE, "call two oh two five five five oh one four three today", "[PHONE_NUMBER_1] today"),
        (Redaction.NUMBERS, "room four oh two or room nine maybe", "room [NUMBER_1] or room nine maybe"),
        (Redaction.AGGRESSIVE, "two people on the fifth floor", "[NUMBER_1] people on the [NUMBER_2] floor"),
    ],
)
def test_each_kind_has_its_length_and_label(kind: Redaction, text: str, expected: str) -> None:
    assert final(text, [kind]).endswith(expected)


@pytest.mark.parametrize(
    "after", ["got it", "sir", "okay i have that one now", "perfect and what is the next one please"]
)
@pytest.mark.parametrize(
    ("groups", "shown_groups"),
    [
        (("four one one one", "two three four five", "six seven eight nine", "one two three four"), 1),
        (("five three six", "six nine", "oh four three nine"), 1),
        (("forty one", "eleven", "twenty two", "thirty three"), 2),
        (("four", "one", "one", "one", "two", "three"), 4),
    ],
)
def test_groups_after_the_first_one_are_masked_whatever_words_follow_each(
    after: str, groups: tuple[str, ...], shown_groups: int
) -> None:
    redactor = Redactor(PCI, 1)
    texts = [shown(redactor.final(0, spoken(f"{group} {after}", 15.0 * at))) for at, group in enumerate(groups)]
    assert all(text.startswith("[NUMBER_") for text in texts[shown_groups:])
    near_the_end = len(after.split()) <= 3 and len(groups[0].split()) > 2
    assert [text.startswith("[") for text in texts[:shown_groups]] == [near_the_end] * shown_groups


def test_the_first_group_is_masked_too_in_a_whole_recording() -> None:
    groups = ("forty one eleven", "eighteen twenty", "six", "nineteen hundred and five")
    finals = [(0, spoken(f"{group} is how it is going here", 15.0 * at)) for at, group in enumerate(groups)]
    finals.insert(1, (1, spoken("it was in nineteen eighty four with all of us", 8.0)))
    texts = [shown(words) for words in Redactor(PCI, 2).recording(finals)]
    assert texts[1] == "it was in nineteen eighty four with all of us"
    assert all(text.startswith("[NUMBER_") for text in (texts[0], *texts[2:]))


def test_the_digits_of_each_channel_count_alone_and_repeats_are_masked() -> None:
    redactor = Redactor(PCI, 2)
    assert shown(redactor.final(0, spoken("four one one one and that is how it begins"))).startswith("four")
    other = "my room is two oh two on the second floor"
    assert shown(redactor.final(1, spoken(other, 8.0))) == other
    repeat = redactor.final(1, spoken("four one one one is what i have so far", 14.0))
    assert shown(repeat) == "[NUMBER_1] is what i have so far"


def test_a_number_that_was_asked_for_is_masked_after_a_long_pause() -> None:
    redactor = Redactor(PCI, 2)
    redactor.final(1, spoken("may i have your card number please"))
    assert (
        shown(redactor.final(0, spoken("it took five minutes to find it", 70.0))) == "it took five minutes to find it"
    )
    assert shown(redactor.final(0, spoken("forty one and that is how it begins", 80.0))).startswith("[NUMBER_1]")
    assert shown(redactor.final(0, spoken("one one one and two three", 100.0))) == "[NUMBER_2]"
    later = "we are two at table nine tonight"
    assert shown(redactor.final(0, spoken(later, 105.0 + CONTEXT_S))) == later


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Redaction.PCI, "my c v v is one two three thanks and that is everything"),
        (Redaction.PCI, "c v c four five six and that is everything"),
        (Redaction.PCI, "one two three is my security code"),
        (Redaction.PCI, "forty one two is the security code and that is everything"),
        (Redaction.PCI, "the three digit code on the back is one two three and that is all"),
        (Redaction.PCI, "it is valid until oh nine twenty six and that is all"),
        (Redaction.PCI, "it runs out in march twenty twenty eight and that is all"),
        (Redaction.PCI, "the one ending in four four twenty one is the right one"),
        (Redaction.PCI, "my p i n is forty four eleven and that is all"),
        (Redaction.SSN, "last four of my s s n are six seven eight nine and that is all"),
        (Redaction.PHONE, "you can reach me at my cell number two oh two and then later five five five"),
    ],
)
def test_codes_endings_and_dates_that_are_announced_in_other_words_are_masked(kind: Redaction, text: str) -> None:
    said = final(text, [kind]).replace("three digit", "").replace("last four", "").replace("the one", "")
    assert "[NUMBER_1]" in said
    assert Part.NUMBER not in parts([word for word in said.split() if word[0] != "["], in_number=False, ordinals=False)


@pytest.mark.parametrize(
    ("text", "numbers", "aggressive"),
    [
        ("two million people", "[NUMBER_1] people", "[NUMBER_1] people"),
        ("half a million people", "[NUMBER_1] people", "[NUMBER_1] people"),
        ("a million thanks", "a [NUMBER_1] thanks", "a [NUMBER_1] thanks"),
        ("three quarters of a billion men", "[NUMBER_1] men", "[NUMBER_1] men"),
        ("one and a half million men", "[NUMBER_1] men", "[NUMBER_1] men"),
        ("half a day off", "half a day off", "[NUMBER_1] a day off"),
        ("a quarter of them", "a quarter of them", "a [NUMBER_1] of them"),
        ("twice as much", "twice as much", "[NUMBER_1] as much"),
        ("a dozen eggs", "a dozen eggs", "a [NUMBER_1] eggs"),
        ("millions of people", "millions of people", "[NUMBER_1] of people"),
    ],
)
def test_amounts_above_thousands_and_rough_ones(text: str, numbers: str, aggressive: str) -> None:
    assert (final(text, [Redaction.NUMBERS]), final(text, [Redaction.AGGRESSIVE])) == (numbers, aggressive)


@pytest.mark.parametrize(
    "text",
    [
        "twenty five thousand six hundred and seventy eight dollars",
        "two hundred dollars and then three hundred and fifty dollars or four hundred dollars",
        "social media has two billion users",
        "at eleven forty five p m or seven thirty am in room nine if you like",
        "two million three hundred thousand people",
        "it costs $25.50 and $1,250.00 in total for all of you",
    ],
)
def test_amounts_and_times_are_no_long_numbers(text: str) -> None:
    assert final(text, [Redaction.PCI, Redaction.SSN, Redaction.PHONE]) == text


def test_a_card_number_with_a_misrecognized_word_is_masked() -> None:
    text = CARD.replace("eight eight", "eight hate") + " thanks"
    assert final(f"it is {text}") == "it is [NUMBER_1] hate [NUMBER_2] thanks"
    assert final(f"it is {text}", [Redaction.PCI, Redaction.NUMBERS]) == "it is [NUMBER_1] hate [NUMBER_2] thanks"
    apart = "table nine is for two people and three cats"
    assert final(apart) == apart
    assert final(apart, [Redaction.NUMBERS]) == apart


def test_a_masked_number_is_one_word_with_the_times_of_all() -> None:
    words = spoken(f"card {CARD} thanks")
    first, number, last = Redactor(PCI, 1).final(0, words)
    assert (first, last) == (words[0], words[-1])
    assert (number.start_s, number.end_s) == (words[1].start_s, words[-2].end_s)


def test_a_number_in_several_finals_keeps_its_index_until_it_is_known() -> None:
    redactor, words = Redactor(PCI, 1), CARD.split()
    parts = [" ".join(words[at : at + 4]) for at in range(0, 16, 4)]
    texts = [shown(redactor.final(0, spoken(part, 4.0 * i))) for i, part in enumerate(parts)]
    assert texts == ["[NUMBER_1]", "[NUMBER_1]", "[NUMBER_1]", "[CREDIT_CARD_1]"]
    assert shown(redactor.final(0, spoken("nine two please", 20.0))) == "[CREDIT_CARD_1] please"
    assert shown(redactor.final(0, spoken("room four thanks", 30.0))) == "room [NUMBER_2] thanks", "after a card"
    assert shown(redactor.final(0, spoken("room four thanks", 31.0 + CONTEXT_S))) == "room four thanks"


def test_a_number_ends_with_another_word_or_a_long_pause() -> None:
    redactor = Redactor(PCI, 1)
    assert shown(redactor.final(0, spoken("it is four"))) == "it is [NUMBER_1]"
    assert shown(redactor.final(0, spoken("okay and two people", 3.0))) == "okay and [NUMBER_1] people"
    assert shown(redactor.final(0, spoken("two people", 6.0))) == "two people"
    assert shown(redactor.final(0, spoken("four", 9.0))) == "[NUMBER_2]"
    assert shown(redactor.final(0, spoken("two people", 10.0 + RUN_S))) == "two people"


def test_what_one_channel_asks_for_is_masked_on_the_other() -> None:
    redactor = Redactor(PCI, 2)
    redactor.final(0, spoken("and the security code"))
    assert shown(redactor.final(1, spoken("one two three thanks", 3.0))) == "[NUMBER_1] thanks"


def test_partials_show_no_number_and_no_beginning_of_one() -> None:
    redactor = Redactor(PCI, 1)
    text = "two people fo four se seven the one"
    for end, expected in [(1, "[NUMBER_1]"), (2, "[NUMBER_1] people"), (3, "[NUMBER_1] people")]:
        assert shown(redactor.partial(0, spoken(text)[:end])[0]) == expected
    words, before = redactor.partial(0, spoken("we are fo"))
    assert (shown(words), before) == ("we are", 2)
    assert redactor.partial(0, spoken("we are the one"))[1] == 3
    assert shown(redactor.final(0, spoken("two people"))) == "two people", "partials leave no trace"


@pytest.mark.parametrize(
    ("text", "digits"),
    [
        ("four seven one nine", "4719"), ("double five oh", "550"), ("forty seven nineteen", "4719"),
        ("four hundred twenty two", "422"), ("nineteen hundred", "1900"), ("twenty oh five", "2005"),
        ("forty-seven 19", "4719"), ("triple nine", "999"),
    ],
)  # fmt: skip
def test_digits_of_number_words(text: str, digits: str) -> None:
    assert digits_of(text.split()) == digits


def test_values_of_redact() -> None:
    assert kinds_of(["pci", "true", "SSN"]) == {Redaction.PCI, Redaction.NUMBERS, Redaction.SSN}
    assert kinds_of(["false"]) == frozenset()
    for value in ("name", "pii", "phi", "pci,ssn", ""):
        with pytest.raises(BadParameter, match=r"^redact: .* not supported by this server; must be one of pci, ssn"):
            kinds_of([value])


def test_the_same_interim_words_are_read_once_until_a_final_gives_numbers_other_places() -> None:
    """Steps without a new word pass the same tuple."""
    redactor = Redactor(PCI, 2)
    words = spoken("it is four two")
    first = redactor.partial(1, words)
    assert shown(first[0]) == "it is [NUMBER_1]"
    assert redactor.partial(1, words) is first
    assert redactor.partial(1, spoken("it is four")) is not first
    assert redactor.partial(1, words) == first
    redactor.final(0, spoken(f"my card is {CARD.replace('eight eight', 'eight')}"))
    assert shown(redactor.partial(1, words)[0]) == "it is [NUMBER_2]"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("my number is to double three to six one to one nine to die", "my number is to [NUMBER_1] to die"),
        ("it is twenty seven to eight six four dashed four thanks", "it is [NUMBER_1] dashed [NUMBER_2] thanks"),
        ("is for three seven dash for three to four x f t four oh six one thanks",
         "is for [NUMBER_1] x f t [NUMBER_2] thanks"),
        ("six four two three and then for a seven one seven four nine thanks",
         "[NUMBER_1] and then for a [NUMBER_2] thanks"),
    ],
)  # fmt: skip
def test_words_that_sound_like_digits_count_in_the_middle_of_a_number(text: str, expected: str) -> None:
    """As the shipped model writes synthetic speech. At the edge of a number they are shown."""
    assert final(text, [Redaction.PHONE]) == expected


def test_a_number_has_a_label_of_its_kind_once_it_is_finished() -> None:
    redactor = Redactor(PCI, 1)
    words = spoken(f"{CARD} thanks")
    texts = [shown(redactor.partial(0, words[:end])[0]) for end in range(1, len(words) + 1)]
    assert texts[:16] == ["[NUMBER_1]"] * 16
    assert texts[-1] == "[CREDIT_CARD_1] thanks"
    assert shown(redactor.final(0, words[:16])) == "[CREDIT_CARD_1]"


WORDS = (*spoken_digits._SOMETIMES, *spoken_digits._PLAIN, "the", "card", "4719", "forty-seven", "x-ray", "a1", "é", "")


@given(st.lists(st.sampled_from(WORDS)), st.booleans(), st.booleans(), st.booleans())
def test_parts_are_those_of_each_word_between_its_neighbors(
    texts: list[str], in_number: bool, ordinals: bool, wary: bool
) -> None:
    expected, inside = list[Part](), in_number
    for before, text, following in zip(["", *texts], texts, [*texts[1:], "zero" if wary else ""], strict=False):
        expected.append(part(text, before, following, in_number=inside, ordinals=ordinals))
        inside = expected[-1] is Part.NUMBER or (inside and expected[-1] is Part.LINK)
    assert parts(texts, in_number=in_number, ordinals=ordinals, wary=wary) == expected
