"""Words that announce a number to be masked: "card number", "c v v", 卡号; and how long they count. Pure.

An announcement counts for a minute. One that asks for a number ("card number", "security code") counts until a number
came, since a caller may have to fetch the card.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from server.text.numbers.digit_runs import RUN_S
from server.text.redaction_kinds import NumberLanguage, Redaction

CONTEXT_S = 60.0  # after "card", "security code" or a card number: its expiry date and code are short numbers
REQUEST_S = 600.0  # after "card number" without a number
WORDS_AFTER = 6  # between a number and the words that say what it was: "one two three is my security code"
_REQUEST_WORDS = 5  # between "number" and "card"
_LONGEST = 4  # words of a phrase, or characters in Mandarin

_ENDING = ("ends in", "ends with", "ending in", "ending with", "ending on", "last four", "last digits")
_PHRASES: Mapping[NumberLanguage, Mapping[Redaction, tuple[str, ...]]] = {
    NumberLanguage.ENGLISH: {
        Redaction.PCI: (
            "card", "cards", "credit", "debit", "visa", "mastercard", "amex", "security", "cvc", "cvv", "cvv2", "csc",
            "cid", "c v c", "c v v", "c v two", "c s c", "c i d", "pin", "p i n", "verification code", "digit code",
            "code on the back", "on the back", "expiration", "expire", "expires", "expired", "expiring", "expiry",
            "exp", "valid until", "valid till", "valid through", "valid thru", "good until", "good till",
            "good through", "good thru", "runs out", *_ENDING,
        ),
        Redaction.SSN: ("security", "social", "ssn", "s s n", "ssns", "tax id", "itin", "i t i n", *_ENDING),
    },
    NumberLanguage.CHINESE: {
        Redaction.PCI: ("卡", "安全码", "校验码", "验证码", "有效期", "到期", "密码", "尾号"),
        Redaction.SSN: ("身份证", "证件"),
    },
}  # fmt: skip
"""Words that announce a number of a kind."""

_ASKED: Mapping[NumberLanguage, Mapping[Redaction, tuple[str, ...]]] = {
    NumberLanguage.ENGLISH: {
        Redaction.PHONE: (
            "phone", "telephone", "cell", "cellphone", "mobile", "landline", "fax", "callback", "contact", "reach",
            "call", "dial", "text",
        ),
    },
    NumberLanguage.CHINESE: {Redaction.PHONE: ("电话", "手机", "座机", "联系")},
}  # fmt: skip
"""Words that announce a number of a kind only with one of `_REQUESTS` nearby."""

_REQUESTS = {
    NumberLanguage.ENGLISH: (
        "number",
        "numbers",
        "digits",
        "code",
        "date",
        "cvv",
        "cvc",
        "c v v",
        "c v c",
        "ssn",
        "s s n",
    ),
    NumberLanguage.CHINESE: ("号", "码", "期", "多少"),
}
_OTHER_MEANINGS = {
    ("social", word)
    for word in ("club", "distancing", "event", "events", "life", "media", "network", "networks", "services", "worker")
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Announcement:
    """The word at `at` completes words that announce a number; `asked`: they ask for it."""

    at: int
    asked: bool


class Announcements:
    """Finds announcements in the words of all channels and says until when they count: one side asks, one answers."""

    def __init__(self, kinds: Collection[Redaction], language: NumberLanguage) -> None:
        self._space = "" if language is NumberLanguage.CHINESE else " "
        languages = (language,) if language is NumberLanguage.ENGLISH else (language, NumberLanguage.ENGLISH)
        self._alone = self._of(_PHRASES, kinds, languages)
        self._asked = self._of(_ASKED, kinds, languages)
        self._requests = tuple(self._space + word for known in languages for word in _REQUESTS[known])
        self._until_s = -math.inf
        self._asked_until_s = -math.inf

    def _of(
        self,
        phrases: Mapping[NumberLanguage, Mapping[Redaction, tuple[str, ...]]],
        kinds: Collection[Redaction],
        languages: Collection[NumberLanguage],
    ) -> tuple[str, ...]:
        return tuple(
            self._space + (phrase if self._space else phrase.replace(" ", ""))
            for language in languages
            for kind in kinds
            for phrase in phrases[language].get(kind, ())
        )

    def found(self, texts: Sequence[str]) -> list[Announcement]:
        """Return the announcements in the words of a final, given as `plain` returns them."""
        if not (self._alone or self._asked):
            return []
        ends = [self._ending(texts, at) for at in range(len(texts))]
        requests = [at for at, end in enumerate(ends) if end.endswith(self._requests)]
        announcements = []
        for at, end in enumerate(ends):
            asked = any(abs(at - one) <= _REQUEST_WORDS for one in requests)
            alone = end.endswith(self._alone) and (texts[at], *texts[at + 1 : at + 2]) not in _OTHER_MEANINGS
            if alone or (asked and end.endswith(self._asked)):
                announcements.append(Announcement(at, asked))
        return announcements

    def _ending(self, texts: Sequence[str], at: int) -> str:
        return self._space + self._space.join(texts[max(0, at + 1 - _LONGEST) : at + 1])

    def announce(self, end_s: float, *, asked: bool = False) -> None:
        """Note an announcement whose last word ends at `end_s`."""
        self._until_s = max(self._until_s, end_s + CONTEXT_S)
        if asked:
            self._asked_until_s = max(self._asked_until_s, end_s + REQUEST_S)

    def answered(self, end_s: float) -> None:
        """Note that a group of digits came: a number that was asked for is not waited for much longer."""
        if end_s < self._asked_until_s:
            self._asked_until_s = end_s + RUN_S
            if self._alone:  # of a kind that has short numbers too
                self.announce(end_s)

    def counts(self, start_s: float) -> bool:
        """Whether every number at this time is announced."""
        return start_s < self._until_s

    def waits(self, start_s: float) -> bool:
        """Whether a number was asked for, maybe long ago, and did not come yet."""
        return start_s < self._asked_until_s
