"""Measurement of redaction: spoken numbers, digit words in what a client saw, shares and costs."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest
import soundfile
from stdnum import luhn
from stdnum.us import ssn

from loadtest.benchmarks.redaction.__main__ import (
    CONDITIONS,
    NO_REDACTION,
    Redacted,
    Shown,
    costs,
    markdown,
    recordings_of,
    rows,
)
from loadtest.benchmarks.redaction.numbers import (
    ANNOUNCED,
    END,
    KINDS,
    NAMES,
    Spoken,
    assembled,
    digit_words,
    number,
    read_out,
    sound_alikes,
)
from loadtest.errors import BadSettings
from loadtest.reports.environment import describe
from model.recordings import Utterance
from server.text.spoken_digits import digits_of
from tests.support.needs import need_programs

SILENCE = np.zeros(100, np.int16)


def test_numbers_are_valid_and_read_out_in_full() -> None:
    rng = Random(1)
    for _ in range(100):
        assert luhn.is_valid(number("card", rng))
        assert ssn.is_valid(number("social security", rng))
        digits = number("telephone", rng)
        assert len(digits) == 10
        said = [word for word in read_out(digits, rng) if word not in ("uh", "dash", "and then", "okay", "double")]
        assert digit_words(said) == len(said)
        assert len(digits_of(said)) >= 5


def test_no_sentence_has_a_digit_word_of_its_own() -> None:
    words = " ".join([END, *(text for texts in ANNOUNCED.values() for text in texts)]).split()
    assert not digit_words(words)
    assert not sound_alikes(words)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("my card is [CREDIT_CARD_1] thanks", 0),
        ("it is [NUMBER_1], thanks", 0),
        ("Four, seven oh", 3),
        ("forty-seven and 4719", 2),
        ("someone often wonders", 0),
    ],
)
def test_digit_words_are_found_and_labels_are_none(text: str, count: int) -> None:
    assert digit_words(text.split()) == count


def test_digits_of_one_person_become_a_number(tmp_path: Path) -> None:
    recordings = []
    for speaker in ("ann", "bob"):
        for digit, name in enumerate(NAMES[: 10 if speaker == "ann" else 9]):
            path = tmp_path / f"{speaker}{digit}.wav"
            soundfile.write(path, np.full(160, 100 * digit + 100, np.int16), 16_000)
            recordings.append(Utterance(path, name, "digits", speaker, 0.01))
    found = list(assembled(recordings, 6, seed=1))
    assert [one.kind for one in found] == [*KINDS, *KINDS]
    for one in found:
        assert np.count_nonzero(one.pcm) == 160 * one.digits
    with pytest.raises(BadSettings, match="--digits"):
        list(assembled(recordings[10:], 1, seed=1))


def test_recordings_of_all_sources_are_in_every_group() -> None:
    need_programs("espeak-ng", "flite")
    found = recordings_of(14, None, None, seed=1)
    assert sorted(one.source for one in found) == ["espeak-ng"] * 7 + ["flite"] * 7
    assert {one.source for one in found[:4]} == {"espeak-ng", "flite"}
    assert all(np.abs(one.pcm).max() > 10_000 for one in found)


def test_shares_and_costs_by_condition() -> None:
    recordings = [Spoken("espeak-ng", "card", SILENCE, 16), Spoken("flite", "telephone", SILENCE, 10)]
    masked = Shown(("it", "is", "[NUMBER_1]"), (("it", "is"),))
    early = Shown(("it", "is", "[NUMBER_1]", "for"), (("it", "is", "four"),))
    left = Shown(("it", "is", "four", "two"), ())
    shown = {name: [masked, early] for name in CONDITIONS} | {NO_REDACTION: [left, left]}
    found = {(row.redact, row.source): row for row in rows(recordings, shown)}
    assert found[NO_REDACTION, "all"].masked == 0
    assert found[NO_REDACTION, "all"].digit_words == 4
    row = found["numbers", "all"]
    assert (row.numbers, row.masked, row.masked_in_interims, row.without_sound_alikes) == (2, 2, 1, 1)
    assert (found["numbers", "flite"].masked, found["numbers", "flite"].masked_in_interims) == (1, 0)
    seconds = [dict.fromkeys(CONDITIONS, 1.0) | {"numbers": 1.0 + added} for added in (0.02, 0.3, 0.05)]
    bars = costs(seconds)
    assert [bar.met for bar in bars] == [True, False, True]
    assert bars[1].found == pytest.approx(0.05)
    page = markdown(Redacted("command", tuple(bars), 2, tuple(found.values()), tuple(seconds), describe(1)))
    assert "| numbers | all | 2 | 1.000 | 0.500 | 0.500 | 0 |" in page
