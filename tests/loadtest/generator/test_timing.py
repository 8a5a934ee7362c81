"""Timing rules of the load test: playback and pacer with an explicit clock."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from loadtest.generator.answers import LatencySplit
from loadtest.generator.measures import Ending, SentStep
from loadtest.generator.parts import Breakdown
from loadtest.generator.playback import Playback
from loadtest.generator.timers import Pacer
from tests.support.clients.loadtest_bench import T0, recording
from tutti_asr_client.errors import Refused
from tutti_asr_client.messages import StepTimings


class Tape:
    """Records what a playback reports, relative to T0."""

    def __init__(self) -> None:
        self.steps: list[tuple[float, float]] = []
        self.unanswered: list[tuple[float, float]] = []
        self.sends: list[tuple[float, float]] = []
        self.finals: list[tuple[float, float]] = []
        self.timings: list[StepTimings] = []
        self.splits: list[tuple[Any, ...]] = []
        self.refusals: list[tuple[float, float]] = []
        self.covered_s = 0.0

    def step_answered(self, scheduled_s: float, answered_s: float) -> None:
        self.steps.append(_from_t0(scheduled_s, answered_s))

    def step_unanswered(self, scheduled_s: float, given_up_s: float) -> None:
        self.unanswered.append(_from_t0(scheduled_s, given_up_s))

    def step_timings(self, answered_s: float, timings: StepTimings) -> None:
        self.timings.append(timings)

    def sent(self, scheduled_s: float, sent_s: float) -> None:
        self.sends.append(_from_t0(scheduled_s, sent_s))

    def refused(self, dialed_s: float, answered_s: float, refusal: Refused) -> None:
        self.refusals.append(_from_t0(dialed_s, answered_s))

    def split(self, sent: SentStep, answered_s: float, parts: LatencySplit) -> None:
        self.splits.append((*(round(each - T0, 4) for each in (*sent, answered_s)), parts))

    def covered(self, audio_s: float, answered_s: float) -> None:
        self.covered_s += audio_s

    def final(self, scheduled_s: float, answered_s: float) -> None:
        self.finals.append(_from_t0(scheduled_s, answered_s))


def _from_t0(first: float, second: float) -> tuple[float, float]:
    return round(first - T0, 4), round(second - T0, 4)


SPLIT = LatencySplit(queue_ms=0.5, step_ms=1.0, handover_ms=0.25, decode_ms=0.125, write_ms=0.125)


def answer(cursor_s: float, text: str = "", *, final: bool = False, split: LatencySplit | None = None) -> bytes:
    message = {
        "type": "Results",
        "start": 0.0,
        "duration": cursor_s,
        "is_final": final,
        "channel": {"alternatives": [{"transcript": text}]},
        "tutti": {"queue_wait_ms": 1.0, "step_ms": 2.0, "decode_ms": 3.0, "latency": split},
    }
    return msgspec.json.encode(message)


def played(tape: Tape, *, until: float = 1.0) -> Playback:
    """Return a playback whose messages up to `until` have been sent on time."""
    playback = Playback(recording(), T0, tape)
    playback.opened(T0 + 0.04)
    while playback.next_s is not None and playback.next_s <= T0 + until:
        playback.take(playback.next_s)
    return playback


def test_latency_is_measured_from_the_scheduled_send_to_the_first_covering_result() -> None:
    tape = Tape()
    playback = played(tape)
    playback.message(answer(0.08), T0 + 0.09)
    playback.message(answer(0.08), T0 + 0.10)  # a repeated result covers no new step
    playback.message(answer(0.2399), T0 + 0.30)  # rounded down, covers two at once
    assert tape.steps == [(0.08, 0.09), (0.16, 0.3), (0.24, 0.3)]
    assert len(tape.timings) == 3


def test_neither_a_late_send_nor_a_slow_handshake_reduces_the_latency() -> None:
    for opened, taken, lag in ((0.04, (0.13,), 0.05), (0.10, (0.10, 0.16), 0.0)):
        playback = Playback(recording(), T0, tape := Tape())
        playback.opened(T0 + opened)
        for at in taken:
            playback.take(T0 + at)
        end = 0.08 * len(taken)
        playback.message(answer(end), T0 + 0.17)
        assert tape.steps == [(0.08 * step, 0.17) for step in range(1, len(taken) + 1)]
        assert tape.sends == [(end, pytest.approx(end + lag))]


def test_the_parts_of_a_result_are_recorded_for_its_last_step() -> None:
    tape = Tape()
    playback = Playback(recording(), T0, tape)
    playback.opened(T0 + 0.10)
    playback.take(T0 + 0.11)
    playback.take(T0 + 0.17)
    playback.message(answer(0.16, split=SPLIT), T0 + 0.18)
    playback.message(answer(0.16, split=SPLIT), T0 + 0.19)  # covers no new step
    assert tape.splits == [(0.16, 0.1, 0.17, 0.18, SPLIT)]


def test_parts_add_up_and_the_slowest_two_percent_are_separate() -> None:
    breakdown = Breakdown()
    assert breakdown.composition() is None
    for _ in range(98):
        breakdown.add(0.003, 0.0, 0.0005, SPLIT)
    for _ in range(2):
        breakdown.add(0.010, 0.006, 0.001, SPLIT)
    found = breakdown.composition()
    assert found is not None
    assert (found.slowest.latency, found.slowest.opening, found.slowest.generator) == pytest.approx((10, 6, 1))
    assert found.slowest.rest == pytest.approx(10 - 6 - 1 - 2, abs=1e-3)
    assert found.every.latency == pytest.approx(3.14, abs=1e-3)
    assert found.every.rest == pytest.approx(0.98 * 0.5 + 0.02 * 1, abs=2e-3)


def test_a_result_for_unsent_audio_is_ignored() -> None:
    tape = Tape()
    playback = played(tape, until=0.1)
    playback.message(answer(9.0), T0 + 0.11)
    assert tape.steps == [(0.08, 0.11)]


def test_a_complete_playback_has_text_and_final_latency() -> None:
    tape = Tape()
    playback = played(tape)
    playback.message(answer(0.16, "one", final=True), T0 + 0.2)
    playback.close(playback.end_s)
    playback.message(answer(0.26, "two", final=True), T0 + 0.29)
    playback.message(b'{"type":"Metadata"}', T0 + 0.3)
    outcome = playback.closed(1000, "", T0 + 0.31)
    assert (outcome.ending, outcome.text) == (Ending.COMPLETE, "one two")
    assert tape.finals == [(0.26, 0.29)]
    assert not tape.unanswered


def test_a_playback_cut_at_the_end_of_the_level_is_not_compared() -> None:
    tape = Tape()
    playback = played(tape, until=0.1)
    playback.close(T0 + 0.16)
    playback.message(answer(0.08, "one", final=True), T0 + 0.17)
    assert playback.closed(1000, "", T0 + 0.18).ending is Ending.CUT
    assert not tape.finals


def test_a_recording_joined_under_way_is_measured_but_not_compared() -> None:
    tape, whole = Tape(), recording()
    rest = whole.after(1)
    assert (rest.frames, rest.steps) == (whole.frames[1:], whole.steps - 1)
    playback = Playback(rest, T0, tape)
    playback.opened(T0)
    while playback.next_s is not None:
        playback.take(playback.next_s)
    playback.message(answer(0.08), T0 + 0.1)
    playback.close(playback.end_s)
    playback.message(answer(0.18, "two", final=True), T0 + 0.2)
    assert playback.closed(1000, "", T0 + 0.21).ending is Ending.CUT
    assert tape.steps == [(0.08, 0.1), (0.16, 0.2)]


@pytest.mark.parametrize(
    ("messages", "code", "problem"),
    [
        ([answer(0.26, final=True)], 1011, "closed with 1011 why"),
        ([answer(0.26)], 1000, "no final after CloseStream"),
        ([answer(0.16, final=True)], 1000, "steps without a result"),
        ([b'{"type":"Results"}', answer(0.26, final=True)], 1000, "unreadable message"),
        ([b'{"type":"Error","description":"bad"}', answer(0.26, final=True)], 1000, "error from the server: bad"),
    ],
)
def test_every_abnormal_end_is_a_failure_with_a_reason(messages: list[bytes], code: int, problem: str) -> None:
    tape = Tape()
    playback = played(tape)
    playback.close(playback.end_s)
    for message in messages:
        playback.message(message, T0 + 0.3)
    outcome = playback.closed(code, "why" if code != 1000 else "", T0 + 0.4)
    assert outcome.ending is Ending.FAILED
    assert outcome.problem.startswith(problem)


def test_an_early_close_is_a_failure_even_with_1000() -> None:
    outcome = played(Tape(), until=0.1).closed(1000, "", T0 + 0.12)
    assert outcome.problem == "closed with 1000 before the end of the audio"


def test_a_step_without_a_result_counts_with_its_age() -> None:
    tape = Tape()
    playback = played(tape)
    playback.message(answer(0.16), T0 + 0.2)
    playback.failed("time is up", T0 + 5.0)
    assert tape.unanswered == [(0.24, 5.0)]


@pytest.mark.parametrize(
    ("long_steps", "cursor_s", "measured"),
    [
        (True, 0.2, [(0.24, 0.25)]),  # from the message that completes the step
        (True, 0.24, [(0.24, 0.25)]),
        (False, 0.24, [(0.08, 0.25), (0.16, 0.25), (0.24, 0.25)]),
    ],
)
def test_of_steps_longer_than_a_message_the_completing_one_is_measured(
    long_steps: bool, cursor_s: float, measured: list[tuple[float, float]]
) -> None:
    tape = Tape()
    playback = Playback(recording(10, 0.0), T0, tape, long_steps=long_steps)
    playback.opened(T0 - 0.1)
    while playback.next_s is not None:
        playback.take(playback.next_s)
    playback.message(answer(cursor_s, split=SPLIT), T0 + 0.25)
    assert tape.steps == measured
    assert tape.covered_s == pytest.approx(0.24)
    if long_steps:
        playback.close(T0 + 0.8)
        playback.message(answer(0.8, split=SPLIT), T0 + 0.95)
        assert tape.steps == measured, "a result after CloseStream is not a step"
        assert len(tape.splits) == 1, "nor has its latency parts"


def test_the_pacer_calls_in_order_and_never_early() -> None:
    now = T0
    timers: list[tuple[float, Callable[[], None]]] = []
    called: list[str] = []

    def call_later(delay_s: float, call: Callable[[], None]) -> SimpleNamespace:
        timers.append((delay_s, call))
        return SimpleNamespace(cancel=lambda: None)

    pacer = Pacer(SimpleNamespace(call_later=call_later), lambda: now)
    pacer.at(T0 + 2, lambda: called.append("second"))
    pacer.at(T0 + 1, lambda: pacer.at(T0 + 1.5, lambda: called.append("nested")))
    assert [delay_s for delay_s, _ in timers] == [2, 1]
    now = T0 + 1.2
    timers[-1][1]()
    assert called == []
    assert timers[-1][0] == pytest.approx(0.3)
    now = T0 + 3
    timers[-1][1]()
    assert called == ["nested", "second"]
    assert len(timers) == 3
