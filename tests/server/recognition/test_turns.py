"""The turn machine on random words, silences and client requests: the order of events, and the texts they carry."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.ctc.words import Word
from model.turn_ends.score import delay_of
from server.recognition.turns import (
    MAX_WORDS,
    UPDATE_S,
    Trigger,
    TurnEvent,
    TurnKind,
    TurnRules,
    Turns,
    TurnState,
)

STEP_S = 0.08
# A step: a word is recognized, the last open word changes, words are closed, the client ends the turn, or silence.
STEPS = st.lists(st.sampled_from(["word", "change", "close", "force", "quiet", "quiet", "quiet"]), max_size=120)
RULES = st.builds(
    TurnRules,
    end_threshold=st.floats(0.5, 1.0),
    eager_threshold=st.none() | st.floats(0.3, 0.5),
    timeout_s=st.floats(0.5, 10.0),
)


def run(rules: TurnRules, steps: list[str]) -> list[TurnEvent]:
    turns, open_words, events = Turns(rules), list[Word](), list[TurnEvent]()
    for number, step in enumerate(steps):
        until_s, closed, end = (number + 1) * STEP_S, list[Word](), None
        if step == "word":
            open_words.append(Word(f"w{number}", until_s - STEP_S, until_s, 0.9))
        elif step == "change" and open_words:
            open_words[-1] = Word(f"c{number}", open_words[-1].start_s, open_words[-1].end_s, 0.9)
        elif step in ("close", "force"):
            closed, open_words = open_words, []
            end = Trigger.MANUAL if step == "force" else None
        events += turns.advance(until_s, closed, open_words, end=end)
    return events


def texts(event: TurnEvent) -> list[str]:
    return [word.text for word in event.words]


@given(rules=RULES, steps=STEPS)
def test_events_follow_the_state_machine_and_keep_the_eager_text(rules: TurnRules, steps: list[str]) -> None:
    index, eager, state = 0, None, TurnState.NONE
    for event in run(rules, steps):
        assert event.index == index
        assert event.start_s <= event.end_s
        assert 0 <= event.score < 1
        assert (event.trigger is not None) == (event.kind is TurnKind.END)
        match event.kind:
            case TurnKind.START:
                assert state is TurnState.NONE
                state = TurnState.SPEAKING
            case TurnKind.EAGER:
                assert state is TurnState.SPEAKING
                assert event.words
                state, eager = TurnState.AWAITING, texts(event)
            case TurnKind.RESUMED:
                assert state is TurnState.AWAITING
                state = TurnState.SPEAKING
            case _:
                assert state is not TurnState.NONE
                assert state is not TurnState.AWAITING or texts(event) == eager
        if event.kind is TurnKind.END:
            index, state = index + 1, TurnState.NONE


@given(rules=RULES, steps=STEPS)
def test_inside_a_turn_no_two_events_are_further_apart_than_an_update_and_a_step(
    rules: TurnRules, steps: list[str]
) -> None:
    last_s = None
    for event in run(rules, steps):
        if event.kind is not TurnKind.START:
            assert last_s is not None
            assert event.end_s - last_s < UPDATE_S + STEP_S + 1e-6
        last_s = event.end_s


def test_a_threshold_of_one_ends_turns_only_by_the_timeout() -> None:
    rules = TurnRules(end_threshold=1.0, timeout_s=2.0)
    (end,) = [event for event in run(rules, ["word", "close"] + ["quiet"] * 60) if event.kind is TurnKind.END]
    assert end.trigger is Trigger.TIMEOUT
    assert end.end_s == pytest.approx(STEP_S + 2.0, abs=STEP_S)


@pytest.mark.parametrize("answer", [None, 0.1, 0.9])
def test_a_turn_ends_after_the_silence_of_its_threshold_and_of_the_answer_of_the_turn_model(
    answer: float | None,
) -> None:
    turns, delay_s = Turns(TurnRules()), delay_of(TurnRules().end_threshold, answer)
    turns.answer = answer
    turns.advance(0.0, [Word("yes", -0.1, 0.0, 0.9)])
    ends = [event for step in range(1, 60) for event in turns.advance(step * STEP_S, []) if event.trigger is not None]
    assert ends[0].trigger is Trigger.MODEL
    assert delay_s <= ends[0].end_s < delay_s + STEP_S + 1e-6


def test_a_request_to_end_without_an_open_turn_is_ignored() -> None:
    assert run(TurnRules(), ["quiet", "force", "quiet"]) == []


def test_a_turn_has_a_greatest_length() -> None:
    words = [Word("a", 0.0, 1.0, 1.0)] * MAX_WORDS
    start, end = Turns(TurnRules()).advance(1.0, words)
    assert (start.kind, end.kind, end.trigger) == (TurnKind.START, TurnKind.END, Trigger.TIMEOUT)
