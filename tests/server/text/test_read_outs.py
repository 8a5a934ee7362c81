"""Numbers that are read out in groups in generated calls: no digit is shown after the first group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import pytest

from model.ctc.words import Word
from server.text.numbers import chinese_digits, spoken_digits
from server.text.redaction import Redactor
from server.text.redaction_kinds import NumberLanguage, Redaction
from tests.support.audio import chinese_numbers as chinese
from tests.support.audio import english_numbers as english

CALLER, AGENT = 0, 1
PAUSES_S = (0.1, 25.0)
WAIT_S = (0.5, 70.0)  # until an announced number comes
WORD_S = {NumberLanguage.ENGLISH: 0.32, NumberLanguage.CHINESE: 0.2}
SHOWN_DIGITS = 4  # of single digits and pairs without announcement

_KIND: dict[Redaction, english.Kind] = {
    Redaction.PCI: "card",
    Redaction.SSN: "social security",
    Redaction.PHONE: "telephone",
    Redaction.NUMBERS: "card",
    Redaction.AGGRESSIVE: "card",
}
_SIZES = {
    "fours": (4, 4, 4, 4, 3),
    "3-2-4": (3, 2, 4, 3, 2, 4, 1),
    "3-3-4": (3, 3, 4, 3, 3, 3),
    "4-6-5": (4, 6, 5, 4),
    "pairs": (2,) * 10,
    "singles": (1,) * 19,
    "halves": (8, 8, 3),
}
SHORT = ("pairs", "singles")
_ASKED = {
    Redaction.PCI: ("may i have your card number please", "what is the long number on the card", "my card number is"),
    Redaction.SSN: (
        "what is your social security number",
        "can you read me your s s n",
        "my social security number is",
    ),
    Redaction.PHONE: ("what is the best number to reach you", "my phone number is", "may i have a callback number"),
}
_ASKED_CHINESE = {
    Redaction.PCI: ("请说一下您的卡号", "我的银行卡号是"),
    Redaction.SSN: ("请问您的身份证号码", "身份证号是"),
    Redaction.PHONE: ("请问您的手机号", "我的电话号码是"),
}
_BEFORE = ("it is", "so", "sure", "okay let me see", "all right here it comes", "")
_BEFORE_CHINESE = ("就是", "好的", "我看看", "")
BETWEEN = (
    "sir", "ma'am", "got it", "perfect", "great", "thank you", "thanks", "all right", "alright", "go ahead", "good",
    "correct", "exactly", "sure", "fine", "understood", "noted", "continue", "cool", "wonderful", "excellent",
    "one moment", "okay", "yes", "mhm", "uh huh", "um", "and then", "hold on", "copy", "roger", "awesome", "i see",
    "i got that", "go on please", "what comes now", "i have that", "let me check", "okay i have that down",
    "just a moment please", "hang on i dropped my pen", "can you hear me", "and what comes after it",
)  # fmt: skip
BETWEEN_CHINESE = (
    "谢谢", "好的", "嗯", "对", "收到", "明白", "请继续", "可以", "没错", "然后呢", "记下了", "好的谢谢", "您接着说",
    "稍等", "我记一下", "是的", "知道了", "您请说",
)  # fmt: skip
_ENDING = tuple(text for text in BETWEEN if text not in ("okay", "yes", "mhm", "um", "and then"))  # ends a number
_CORRECTIONS = (("no", "sorry"), ("wait", "no"), ("i", "mean"), ("sorry", "that", "is"), ("scratch", "that"))


_WORDS = {NumberLanguage.ENGLISH: spoken_digits, NumberLanguage.CHINESE: chinese_digits}
_CHINESE_DIGITS = frozenset("零一二三四五六七八九幺两十")


@dataclass(frozen=True, slots=True)
class Segment:
    """The words of a final of one channel, and the start times of those that say a digit of the number."""

    channel: int
    words: tuple[Word, ...]
    secret_s: frozenset[float]
    excused_s: frozenset[float]  # of them, those that come before anything tells that a number is read out


@dataclass(slots=True)
class Call:
    """A call so far: its segments, and the time."""

    kind: Redaction
    language: NumberLanguage
    announced: bool
    pattern: str
    segments: list[Segment] = field(default_factory=list)
    now_s: float = 0.0

    def say(self, channel: int, pieces: Sequence[tuple[str, bool, bool]]) -> None:
        """Add a final of words, each with whether it says a digit, and whether that one is excused."""
        words, secret, excused = list[Word](), set[float](), set[float]()
        for text, says_digit, may_show in pieces:
            words.append(Word(text, self.now_s, self.now_s + 0.15, 1.0))
            if says_digit:
                secret.add(self.now_s)
            if may_show:
                excused.add(self.now_s)
            self.now_s += WORD_S[self.language]
        self.segments.append(Segment(channel, tuple(words), frozenset(secret), frozenset(excused)))


def call(rng: Random, kind: Redaction, language: NumberLanguage) -> Call:
    """Return a call with one number of a kind."""
    patterns = [name for name in _SIZES if not (kind is Redaction.NUMBERS and name == "singles")]
    style = rng.choice(("before", "not", "not"))
    announced = style == "before" and kind in _ASKED
    one = Call(kind, language, announced, rng.choice(patterns))
    zh = language is NumberLanguage.CHINESE
    if announced:
        asked = rng.choice((_ASKED_CHINESE if zh else _ASKED)[kind])
        one.say(rng.choice((CALLER, AGENT)), _plain(asked, language))
        one.now_s += rng.uniform(*WAIT_S)
    waiting, said = _plain(rng.choice(_BEFORE_CHINESE if zh else _BEFORE), language), 0
    for group in _groups(_digits(kind, language, rng), _SIZES[one.pattern], kind):
        spoken = _spoken(group, language, rng, plain=one.pattern == "singles")
        corrected = _correction(one, rng)
        excused, last_excused = (
            not announced and (said == 0 or said + _digits_in(words, language) <= SHOWN_DIGITS)
            for words in (spoken, [*spoken, *corrected])
        )
        said += _digits_in([*spoken, *corrected], language)
        if spoken[0] in ("one", "oh") and waiting:  # "that one" is no digit
            one.say(CALLER, waiting)
            waiting = []
        waiting += [*_marked(spoken, excused), *_marked(corrected, last_excused)]
        if excused or rng.random() < 0.85:
            between = BETWEEN_CHINESE if zh else _ENDING if excused else BETWEEN
            waiting += _plain(rng.choice(between), language)
        if rng.random() < 0.85:
            one.say(CALLER, waiting)
            waiting = []
            _pause(one, spoken, excused, rng)
    one.say(CALLER, [*waiting, *_plain("再见" if zh else "goodbye", language)])
    return one


def _digits_in(words: Sequence[str], language: NumberLanguage) -> int:
    return len(_WORDS[language].digits_of([text for text, says, _ in _marked(words, False) if says]))


def _correction(one: Call, rng: Random) -> list[str]:
    """Return nothing, or words that correct the last digit."""
    if one.language is NumberLanguage.CHINESE or rng.random() > 0.06:
        return []
    said = rng.choice(_CORRECTIONS[:2] if one.kind is Redaction.NUMBERS else _CORRECTIONS)
    return [*said, rng.choice(english.NAMES[2:])]


def _pause(one: Call, spoken: Sequence[str], excused: bool, rng: Random) -> None:
    """Add a pause in which the agent may say something or repeat a group."""
    until_s = one.now_s + rng.uniform(*PAUSES_S)
    if rng.random() < 0.3:
        zh = one.language is NumberLanguage.CHINESE
        after = _plain(rng.choice(BETWEEN_CHINESE if zh else BETWEEN), one.language)
        one.say(AGENT, [*_marked(spoken, excused), *after])
    one.now_s = max(one.now_s, until_s)


def _digits(kind: Redaction, language: NumberLanguage, rng: Random) -> str:
    if language is NumberLanguage.CHINESE and kind in chinese.KINDS:
        return chinese.number(kind, rng)
    return english.number(_KIND[kind], rng)


def _groups(digits: str, sizes: Sequence[int], kind: Redaction) -> list[str]:
    groups, at = [], 0
    for size in sizes:
        groups.append(digits[at : at + size])
        at += size
    groups = [group for group in [*groups, digits[at:]] if group]
    if kind is Redaction.NUMBERS and len(groups[-1]) == 1:  # with `numbers` alone a single digit is not masked
        groups[-2:] = ["".join(groups[-2:])]
    return groups


def _marked(spoken: Sequence[str], excused: bool) -> list[tuple[str, bool, bool]]:
    """Return words with whether they say a digit: "dash" and 个 do not."""
    return [
        (text, says := text in _CHINESE_DIGITS or english.digit_words([text]) > 0, says and excused) for text in spoken
    ]


def _plain(text: str, language: NumberLanguage) -> list[tuple[str, bool, bool]]:
    return [(word, False, False) for word in (text if language is NumberLanguage.CHINESE else text.split())]


def _spoken(group: str, language: NumberLanguage, rng: Random, *, plain: bool) -> list[str]:
    if language is NumberLanguage.CHINESE:
        return (
            list(chinese.read_out(group, rng))
            if not plain
            else [chinese.NAMES[int(d)] if d != "X" else "X" for d in group]
        )
    if plain:
        return [english.NAMES[int(digit)] for digit in group]
    return " ".join(english.read_out(group, rng)).split()


CALLS = 400


def shown_digits(one: Call, rng: Random) -> tuple[int, int, int]:
    """Return the digit words shown: excused ones, others in finals, any in interims."""
    redactor = Redactor(frozenset({one.kind}), 2, one.language)
    excused = out = early = 0
    for segment in one.segments:
        upto = rng.randint(0, len(segment.words))
        interim = redactor.partial(segment.channel, segment.words[:upto])[0]
        early += sum(word.start_s in segment.secret_s and word.text[0] != "[" for word in interim)
        for word in redactor.final(segment.channel, segment.words):
            if word.text[0] != "[" and word.start_s in segment.secret_s:
                excused += word.start_s in segment.excused_s
                out += word.start_s not in segment.excused_s
    return excused, out, early


def check(calls: int, seed: int) -> Counter[str]:
    """Generate calls, check each of them, and return counts."""
    rng, counts = Random(seed), Counter[str]()
    for _ in range(calls):
        kind, language = rng.choice(tuple(Redaction)), rng.choice(tuple(NumberLanguage))
        one = call(rng, kind, language)
        excused, out, early = shown_digits(one, rng)
        assert (out, early) == (0, 0), (kind, language, one.pattern, [[w.text for w in s.words] for s in one.segments])
        counts["calls"] += 1
        counts["announced"] += one.announced
        counts["digit words"] += sum(len(segment.secret_s) for segment in one.segments)
        counts["calls with a shown first group"] += bool(excused)
        counts["shown digit words of first groups"] += excused
        assert not (one.announced and excused)
    return counts


@pytest.mark.parametrize("seed", range(4))
def test_no_digit_of_a_number_in_groups_is_shown_after_its_first_group(seed: int) -> None:
    counts = check(CALLS, seed)
    assert counts["announced"] > CALLS // 10
    assert counts["calls with a shown first group"] < CALLS // 3
