"""Where a segment ends: endpoints by silence, with and without words, and cuts for length."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from model.turn_ends.score import delay_of
from server.audio.pcm import PCM
from server.recognition.events import Final, FinalReason, Partial
from server.recognition.segments.endpointing import NOISY_S, SMART_END, ScoredEnd
from server.recognition.session_options import Limits
from server.text.redaction_kinds import NumberLanguage, Redaction
from server.text.unfinished import WAIT_S
from tests.support.servers.recognizers.spelling import CONFIG, silence, spell
from tests.support.streams.session_bench import SessionBench

STEP_S = CONFIG.step_samples / CONFIG.sample_rate


def test_an_endpoint_shorter_than_the_pauses_inside_words_is_held_to_the_minimum() -> None:
    asked_nothing, at_minimum = SessionBench(endpointing_ms=10), SessionBench(endpointing_ms=400)
    for bench in (asked_nothing, at_minimum):
        bench.send(np.concatenate([spell("one"), silence(1.0), spell("two"), silence(1.0)]))
        bench.answer()
    assert asked_nothing.events == at_minimum.events
    assert [f.reason for f in asked_nothing.finals()] == [FinalReason.ENDPOINT] * 2


def loud(seconds: float) -> PCM:
    """Audio without a letter that is not silent by its level."""
    return np.where(np.arange(round(seconds * CONFIG.sample_rate)) % 2, 300, -300).astype(np.int16)


@pytest.mark.parametrize("scored", [None, SMART_END])
@pytest.mark.parametrize("redact", [frozenset(), frozenset({Redaction.PCI})])
@pytest.mark.parametrize("loud_s", [0.4, 0.8])
def test_no_endpoint_falls_into_sound_whose_words_are_not_known_yet(
    loud_s: float, scored: ScoredEnd | None, redact: frozenset[Redaction]
) -> None:
    """The audio has to be silent for what was asked for, and a second after the last word is enough in a loud room."""
    needed_s = 0.4 if scored is None else scored.delay_s(None)
    words_end_s = 0.4 + 5 * 0.04
    bench = SessionBench(endpointing_ms=400, scored_end=scored, redact=redact)
    bench.send(np.concatenate([silence(0.4), spell("one"), loud(loud_s), silence(2.0)]))
    bench.answer()
    quiet_s = words_end_s + 0.04 + loud_s + needed_s
    noisy_s = words_end_s + NOISY_S + CONFIG.delay_frames * CONFIG.frame_s
    assert bench.finals()[0].duration_s == pytest.approx(min(quiet_s, noisy_s), abs=STEP_S)


def test_the_level_of_a_quiet_word_is_not_silence() -> None:
    """The words decide first: letters of a constant level are silent by their level."""
    bench = SessionBench(scored_end=ScoredEnd(0.9, 3.0))
    bench.send(np.concatenate([silence(2.0), spell("one"), silence(2.0)]))
    bench.answer()
    assert bench.finals()[0].duration_s >= 2.2 + delay_of(0.9)


@pytest.mark.parametrize(
    ("language", "asked", "waits_s"),
    [(NumberLanguage.ENGLISH, None, WAIT_S), (NumberLanguage.ENGLISH, False, 0.0), (None, None, 0.0)],
)
def test_a_scored_end_waits_inside_a_number(
    language: NumberLanguage | None, asked: bool | None, waits_s: float
) -> None:
    options: dict[str, Any] = {"number_language": language, "wait_in_numbers": asked}
    bench, plain = (SessionBench(scored_end=ScoredEnd(0.9, 3.0), **options) for _ in range(2))
    for one, text in ((bench, "two oh"), (plain, "two go")):
        one.send(np.concatenate([spell(text), silence(4.0)]))
        one.answer()
    assert bench.finals()[0].duration_s - plain.finals()[0].duration_s == pytest.approx(waits_s, abs=STEP_S)


def test_text_still_in_the_lookahead_at_an_endpoint_is_not_lost() -> None:
    bench = SessionBench()
    bench.send(np.concatenate([spell("one"), silence(0.44), spell("t")]))
    bench.close()
    bench.answer()
    assert bench.text() == "one t"


def test_a_long_segment_is_cut_after_its_last_finished_word() -> None:
    bench = SessionBench(limits=Limits(max_utterance_s=2.0))
    bench.send(spell("alpha bravo charlie delta echo foxtrot"))
    bench.close()
    bench.answer()
    assert {f.reason for f in bench.finals()[:-1]} == {FinalReason.MAX_LEN}
    assert all(f.duration_s <= 2.0 + STEP_S for f in bench.finals())
    assert bench.text() == "alpha bravo charlie delta echo foxtrot"


def test_an_upload_cut_for_length_ends_between_two_words() -> None:
    """Words that the recognizer may still change are said before the cut, but belong to the next segment."""
    text = "alpha bravo charlie delta echo foxtrot"
    whole, cut = (SessionBench(limits=Limits(max_utterance_s=s), partials=False) for s in (30.0, 1.0))
    for bench in (whole, cut):
        bench.send(spell(text))
        bench.close()
        bench.answer()
    assert len(cut.finals()) > 2
    times, cut_times = ([(w.text, w.start_s, w.end_s) for f in b.finals() for w in f.words] for b in (whole, cut))
    assert cut_times == times


def test_a_word_without_an_end_is_cut_after_the_overtime() -> None:
    bench = SessionBench(limits=Limits(max_utterance_s=1.0))
    bench.send(spell("ab" * 60))
    bench.answer()
    assert 6.0 <= bench.finals()[0].duration_s <= 6.0 + STEP_S


@pytest.mark.parametrize(
    ("options", "audio", "reasons"),
    [
        # (1) nothing said for 2.4 s: an empty endpoint, again and again; three frames of it are still in the lookahead
        ({}, [silence(2.4)], []),
        ({}, [silence(2.4 + 0.12 + 0.08)], ["endpoint"]),
        ({}, [silence(7.5)], ["endpoint"] * 3),
        ({"endpointing_ms": None}, [silence(7.5)], []),
        ({"limits": Limits(silence_endpoint_ms=None)}, [silence(7.5)], []),
        ({"limits": Limits(silence_endpoint_ms=1_000.0)}, [silence(2.5)], ["endpoint"] * 2),
        # (2) silence after words; then (1) starts again
        ({"endpointing_ms": 800}, [spell("yes"), silence(0.8)], []),
        ({"endpointing_ms": 800}, [spell("yes"), silence(1.0)], ["endpoint"]),
        ({"endpointing_ms": 800}, [spell("yes"), silence(3.0)], ["endpoint"]),
        ({"endpointing_ms": 800}, [spell("yes"), silence(3.6)], ["endpoint", "endpoint"]),
        # (3) too long, with and without endpoints
        ({"limits": Limits(max_utterance_s=1.0)}, [spell("one two three")], ["max_len"]),
        ({"limits": Limits(max_utterance_s=1.0), "endpointing_ms": None}, [spell("one two three")], ["max_len"]),
        ({"limits": Limits(max_utterance_s=2.0)}, [silence(9.0)], ["max_len"] * 4),
        ({"endpointing_ms": None}, [spell("one "), silence(5.0), spell("two")], []),
    ],
)
def test_the_three_endpoint_rules(options: dict[str, Any], audio: list[PCM], reasons: list[str]) -> None:
    bench = SessionBench(**options)
    bench.send(np.concatenate(audio))
    bench.answer()
    assert [f.reason for f in bench.finals()] == reasons
    longest_s = options.get("limits", Limits()).max_utterance_s
    assert all(f.duration_s < longest_s + STEP_S for f in bench.finals())


def test_silent_segment_ends_before_audio_still_in_the_lookahead() -> None:
    """Speech begins just before the cut: its words keep their times, inside the next segment."""
    bench = SessionBench()
    bench.send(np.concatenate([silence(2.48), spell("soon"), silence(1.0)]))
    bench.answer()
    empty, final = bench.finals()
    assert (empty.words, empty.reason) == ((), FinalReason.ENDPOINT)
    assert 2.4 <= empty.duration_s < 2.48
    assert final.words[0].start_s == pytest.approx(2.48)


def test_with_every_step_a_silent_endpoint_ends_at_its_own_step() -> None:
    bench = SessionBench(every_step=True)
    bench.send(silence(4.0))
    bench.answer()
    ends = [e.start_s + e.duration_s for e in bench.events if isinstance(e, Partial | Final)]
    assert ends == pytest.approx([STEP_S * n for n in range(1, 51)])


@pytest.mark.parametrize("shown", [{"partials": False}, {"every_step": True}, {"interim_stability": "high"}], ids=str)
@pytest.mark.parametrize("longest_s", [30.0, 1.0])
def test_segments_end_at_the_same_steps_whatever_interims_are_sent(longest_s: float, shown: dict[str, Any]) -> None:
    said = [spell("one two three"), silence(7.5), spell("four"), silence(2.7), spell("five six"), silence(5.3)]
    ends: list[list[tuple[int, FinalReason, list[str]]]] = []
    for flags in ({}, shown):
        bench = SessionBench(limits=Limits(max_utterance_s=longest_s), **flags)
        bench.send(np.concatenate(said))
        ends.append([])
        for step in range(bench.computed):
            before = len(bench.finals())
            bench.answer(1)
            ends[-1] += [(step, final.reason, [w.text for w in final.words]) for final in bench.finals()[before:]]
    assert ends[1] == ends[0]
    assert len(ends[0]) > 5


def test_with_voice_activity_both_models_must_agree_on_silence() -> None:
    """A voice without words: not silence, and after it the time begins anew."""
    hum = np.full(16_000, 100, np.int16)
    bench = SessionBench(voice=True)
    bench.send(np.concatenate([silence(2.0), hum, silence(2.3)]))
    bench.answer()
    assert not bench.finals()
    bench.send(silence(0.3))
    bench.answer()
    assert [f.reason for f in bench.finals()] == [FinalReason.ENDPOINT]


def test_the_delay_of_an_endpoint_is_the_audio_after_its_last_word() -> None:
    bench = SessionBench(endpointing_ms=600)
    bench.send(np.concatenate([spell("yes"), silence(1.0)]))
    bench.answer()
    (final,) = bench.finals()
    assert final.endpoint_delay_s == pytest.approx(final.duration_s - final.words[-1].end_s)
    assert 0.6 + 0.12 <= final.endpoint_delay_s <= 0.6 + 0.12 + STEP_S
    bench.send(spell("no"))
    bench.close()
    bench.answer()
    assert bench.finals()[-1].words
    assert bench.finals()[-1].endpoint_delay_s is None, "no silence ended it"


@pytest.mark.parametrize("late", [True, False], ids=["answered late", "answered at once"])
def test_changed_endpointing_affects_only_later_audio_however_late_it_is_answered(*, late: bool) -> None:
    bench = SessionBench()
    said = np.concatenate([spell("one"), silence(0.8), spell(" two"), silence(0.8)])

    def send() -> None:
        bench.send(said)
        if not late:
            bench.answer()

    send()
    bench.endpoint(2_000.0)
    send()
    bench.endpoint(100.0)  # less than the operator's minimum: that
    send()
    bench.answer()
    ends = [" ".join(word.text for word in final.words) for final in bench.finals()]
    assert ends == ["one", "two", "one two", "one", "two"]
