"""Numbers that are read out in groups in generated calls: no digit is shown after the first group."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from server.text.redaction import Redactor
from server.text.redaction_kinds import NumberLanguage, Redaction
from tests.support.audio.read_outs import Call, call

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
