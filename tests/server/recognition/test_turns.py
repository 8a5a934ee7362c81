"""The turn machine on random words, silences and client requests: the order of events, and the texts they carry."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from model.ctc.words import Word
from model.turn_ends.score import delay_of, score_of
from server.recognition.events import ForkWords
from server.recognition.segments.endpointing import NOISY_S
from server.recognition.turns import (
    HELD_S,
    MAX_WORDS,
    UPDATE_S,
    UPDATED_WORDS_PER_S,
    WORDLESS_S,
    Trigger,
    TurnEvent,
    TurnKind,
    TurnRules,
    Turns,
    TurnState,
)
from server.text.acknowledgements import only_acknowledges
from server.text.redaction_kinds import NumberLanguage
from server.text.unfinished import WAIT_S

STEP_S = 0.08
DELAY_S = 0.32
# A step: voice begins, a word is recognized (perhaps a digit, or one that acknowledges), the last open word changes,
# words are closed, the client ends the turn, or silence.
STEPS = st.lists(
    st.sampled_from(["voice", "word", "two", "yeah", "change", "close", "force", "quiet", "quiet", "quiet"]),
    max_size=120,
)
# With forks: speech by the level of the audio as well, and forks that find what was recognized, one word more, others
# words, or nothing.
FORKED = st.lists(
    st.sampled_from([
        "voice", "word", "two", "yeah", "change", "close", "force", "speech", "fork", "fork more", "fork other",
        "fork none", "quiet", "quiet", "quiet", "quiet", "quiet",
    ]),
    max_size=150,
)  # fmt: skip
RULES = st.builds(
    TurnRules,
    end_threshold=st.floats(0.5, 1.0),
    eager_threshold=st.none() | st.floats(0.3, 0.5),
    timeout_s=st.floats(0.5, 10.0),
    holds_backchannel=st.booleans(),
)


def run(
    rules: TurnRules, steps: list[str], delay_s: float = 0.0, numbers: NumberLanguage | None = None
) -> list[TurnEvent]:
    """Words are known `delay_s` late; with forks the audio is silent by its level but for "speech"."""
    turns, open_words, events = Turns(rules, delay_s=delay_s, numbers=numbers), list[Word](), list[TurnEvent]()
    silence_s = 0.0
    for number, step in enumerate(steps):
        until_s, closed, end = (number + 1) * STEP_S, list[Word](), None
        if step == "voice":
            events += turns.begin(until_s - 0.05)
        if delay_s:
            silence_s = 0.0 if step == "speech" else silence_s + STEP_S
            events += turns.update_silence(until_s, silence_s)
        if step in ("word", "two", "yeah"):
            text = f"w{number}" if step == "word" else step
            open_words.append(Word(text, until_s - delay_s - STEP_S, until_s - delay_s, 0.9))
        elif step == "change" and open_words:
            open_words[-1] = Word(f"c{number}", open_words[-1].start_s, open_words[-1].end_s, 0.9)
        elif step in ("close", "force"):
            closed, open_words = open_words, []
            end = Trigger.MANUAL if step == "force" else None
        events += turns.advance(until_s, closed, open_words, end=end)
        if step.startswith("fork"):
            events += turns.fork(until_s, found(step, number, open_words, until_s, delay_s))
    return events


def found(step: str, number: int, open_words: list[Word], until_s: float, delay_s: float) -> ForkWords:
    words = list(open_words)
    if step == "fork none":
        words.clear()
    elif step == "fork more":
        words.append(Word(f"f{number}", until_s - delay_s, until_s - STEP_S, 0.9))
    elif step == "fork other":
        words = [Word(f"o{number}", word.start_s, word.end_s, 0.9) for word in words]
    return ForkWords(tuple(words), tuple(words), until_s + STEP_S, tuple(words))


def texts(event: TurnEvent) -> list[str]:
    return [word.text for word in event.words]


@pytest.mark.parametrize("delay_s", [0.0, DELAY_S])
@given(rules=RULES, data=st.data())
def test_events_follow_the_state_machine(rules: TurnRules, delay_s: float, data: st.DataObject) -> None:
    """With and without forks: in their order, with the eager text at the end, not too rarely, and by the score."""
    numbers = data.draw(st.sampled_from([None, NumberLanguage.ENGLISH]))
    events = run(rules, data.draw(FORKED if delay_s else STEPS), delay_s, numbers)
    check_rules(events)
    if rules.holds_backchannel:
        assert not [event for event in events if event.kind is TurnKind.START and only_acknowledges(event.words)]
    assert all(
        after.kind is TurnKind.START or after.end_s - before.end_s < UPDATE_S + STEP_S + 1e-6
        for before, after in pairwise(events)
    )
    for event in events if delay_s else ():
        if event.trigger is Trigger.MODEL:
            assert event.score >= rules.end_threshold - 1e-6
        if event.kind is TurnKind.EAGER:
            assert rules.eager_threshold is not None
            assert event.score >= rules.eager_threshold - 1e-6


@pytest.mark.parametrize("silence_s", [0.0, STEP_S])
@pytest.mark.parametrize("eager", [None, 0.4])
def test_no_turn_ends_while_audio_whose_words_are_not_known_yet_is_loud(silence_s: float, eager: float | None) -> None:
    """The last word ended long ago, and the model's delay hides that the speaker is speaking."""
    turns = Turns(TurnRules(eager_threshold=eager), delay_s=DELAY_S)
    turns.update_silence(1.0, 0.0)
    events = turns.advance(1.0, [Word("three", 0.5, 0.6, 0.9)])
    until_s = 1.0
    while until_s < 0.6 + DELAY_S + NOISY_S - STEP_S:
        until_s += STEP_S
        events += turns.update_silence(until_s, silence_s)
        events += turns.advance(until_s, [])
    assert {event.kind for event in events} <= {TurnKind.START, TurnKind.UPDATE}
    turns.update_silence(until_s + 2 * STEP_S, silence_s)
    (end,) = turns.advance(until_s + 2 * STEP_S, [])[-1:]
    assert end.kind is TurnKind.END, "in a loud room a turn ends once words are known to be long past"


def check_rules(events: list[TurnEvent]) -> None:
    index, eager, state = 0, None, TurnState.NONE
    for event in events:
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
    turns.advance(1.0, [Word("yes", 0.9, 1.0, 0.9)])
    ends = []
    for step in range(1, 60):
        turns.update_silence(1.0 + step * STEP_S, step * STEP_S)
        ends += [event for event in turns.advance(1.0 + step * STEP_S, []) if event.trigger is not None]
    assert ends[0].trigger is Trigger.MODEL
    assert delay_s <= ends[0].end_s - 1.0 + 1e-6 < delay_s + STEP_S + 1e-5


TWO_OH = [Word("two", 0.5, 0.7, 0.9), Word("oh", 0.8, 1.0, 0.9)]


def quiet_after(turns: Turns, words: list[Word], seconds: float) -> list[TurnEvent]:
    """Words that are closed at 1 s, and the events of the silence after them."""
    events = turns.advance(1.0, words)
    for step in range(1, round(seconds / STEP_S) + 1):
        events += turns.update_silence(1.0 + step * STEP_S, step * STEP_S)
        events += turns.advance(1.0 + step * STEP_S, [])
    return events


@pytest.mark.parametrize(
    ("numbers", "timeout_s", "ends_s", "trigger"),
    [(None, 5.0, 0.7, Trigger.MODEL), (NumberLanguage.ENGLISH, 5.0, 0.7 + WAIT_S, Trigger.MODEL),
     (NumberLanguage.ENGLISH, 1.0, 1.0, Trigger.TIMEOUT)],
)  # fmt: skip
def test_both_ends_and_the_score_wait_inside_a_number(
    numbers: NumberLanguage | None, timeout_s: float, ends_s: float, trigger: Trigger
) -> None:
    rules = TurnRules(end_threshold=score_of(0.7), eager_threshold=score_of(0.2), timeout_s=timeout_s)
    events = quiet_after(Turns(rules, numbers=numbers), TWO_OH, 2.5)
    assert (events[-1].kind, events[-1].trigger) == (TurnKind.END, trigger)
    assert events[-1].end_s - 1.0 == pytest.approx(ends_s, abs=STEP_S)
    if trigger is Trigger.MODEL:
        (eager,) = [event for event in events if event.kind is TurnKind.EAGER]
        assert eager.end_s - 1.0 == pytest.approx(ends_s - 0.5, abs=STEP_S)
        assert all(event.score < score_of(0.2) for event in events if event.end_s < eager.end_s)


HOLDS = TurnRules(holds_backchannel=True)


def test_a_held_turn_that_only_acknowledges_has_no_event_and_takes_no_index() -> None:
    turns = Turns(HOLDS)
    assert turns.begin(0.4) == []
    assert quiet_after(turns, [Word("yeah", 0.5, 0.8, 0.9)], 2.0) == []
    assert turns.state is TurnState.NONE
    (start, *_, end) = turns.begin(3.2) + turns.advance(4.0, [Word("wait", 3.3, 3.6, 0.9)], end=Trigger.MANUAL)
    assert (start.kind, start.index, start.start_s, texts(start)) == (TurnKind.START, 0, 3.2, ["wait"])
    assert (end.kind, end.index) == (TurnKind.END, 0)


def test_a_held_turn_starts_with_all_its_words_once_another_follows() -> None:
    turns, okay = Turns(HOLDS), Word("okay", 0.5, 0.8, 0.9)
    assert turns.begin(0.45) + turns.advance(1.0, [], [okay]) == []
    (start,) = turns.advance(1.2, [], [okay, Word("then", 0.9, 1.1, 0.9)])
    assert (start.kind, start.start_s, texts(start)) == (TurnKind.START, 0.45, ["okay", "then"])


def test_a_held_turn_whose_words_could_have_become_an_acknowledgement_starts_as_it_ends() -> None:
    assert kinds(quiet_after(Turns(HOLDS), [Word("uh", 0.5, 0.8, 0.9)], 2.0)) == ["START", "END"]


def forked(turns: Turns, end_s: float, *words: Word) -> list[TurnEvent]:
    """Events of a fork that finds these words of which the stream has the texts, unmarked, by then."""
    return turns.fork(end_s, ForkWords(words, (), end_s + DELAY_S, words))


def test_a_fork_does_not_end_a_turn_in_which_speech_has_resumed_since() -> None:
    turns, word = Turns(TurnRules(), delay_s=DELAY_S), Word("so", 0.5, 0.7, 0.9)
    assert turns.update_silence(1.0, 0.3) == []
    assert kinds(turns.fork(1.0, ForkWords((word,), (word,), 2.0, (word,)))) == ["START"]
    assert turns.update_silence(1.1, 0.0) == []
    assert turns.update_silence(1.9, 0.7) == []
    assert "END" not in kinds(turns.advance(1.9, [], [word])), "what was said meanwhile is not known yet"


@pytest.mark.parametrize("marked", [True, False])
def test_a_held_turn_of_a_few_words_waits_until_its_sound_is_known(*, marked: bool) -> None:
    turns, word = Turns(HOLDS, marks=True), Word("but", 0.5, 0.8, 0.9)
    assert turns.advance(0.9, [], [word]) == []
    found = forked(turns, 1.1, structs.replace(word, acknowledges=marked))
    assert kinds(found) == ([] if marked else ["START"])
    rest = turns.advance(2.0, [structs.replace(word, acknowledges=marked)], end=Trigger.MANUAL)
    assert kinds(rest) == ([] if marked else ["END"])


def test_a_held_turn_starts_while_it_is_spoken_once_it_is_longer_than_an_acknowledgement() -> None:
    turns, first = Turns(HOLDS, marks=True), Word("but", 0.5, 0.8, 0.9)
    assert turns.advance(1.0, [], [first]) == []
    assert kinds(turns.advance(1.5, [], [first, Word("then", 0.9, 0.5 + HELD_S + 0.01, 0.9)])) == ["START"]


def test_a_held_turn_starts_when_turns_are_no_longer_held() -> None:
    turns, okay = Turns(HOLDS), Word("okay", 0.5, 0.8, 0.9)
    assert turns.advance(1.0, [], [okay]) == []
    turns.rules = TurnRules()
    assert kinds(turns.advance(1.1, [], [okay])) == ["START"]


def test_voice_without_a_word_gives_no_event_while_turns_are_held() -> None:
    assert run(HOLDS, ["voice"] + ["quiet"] * 40) == []


def test_a_request_to_end_without_an_open_turn_is_ignored() -> None:
    assert run(TurnRules(), ["quiet", "force", "quiet"]) == []


def test_a_turn_begins_with_its_voice_and_its_words_follow() -> None:
    start, *rest = run(TurnRules(), ["quiet", "voice", *["quiet"] * 8, "word"])
    assert (start.kind, start.words, start.start_s) == (TurnKind.START, (), pytest.approx(2 * STEP_S - 0.05))
    assert {event.kind for event in rest} == {TurnKind.UPDATE}
    assert rest[-1].words


def test_a_word_that_began_before_the_voice_was_detected_begins_the_turn() -> None:
    turns = Turns(TurnRules())
    turns.begin(0.544)
    (update,) = turns.advance(1.0, [], [Word("yes", 0.48, 0.6, 0.9)])
    (later,) = turns.advance(1.3, [], [Word("yet", 0.5, 0.6, 0.9)])
    assert (update.start_s, later.start_s) == (0.48, 0.48), "it does not move back again"


def test_updates_of_a_long_turn_are_rarer_as_each_repeats_all_words() -> None:
    turns, sent = Turns(TurnRules(end_threshold=1.0, timeout_s=60.0)), list[TurnEvent]()
    for number in range(MAX_WORDS - 1):
        until_s = number * 0.4
        sent += turns.advance(until_s, [Word("a", until_s - 0.1, until_s, 0.9)])
        words = [event for event in sent if event.end_s > until_s - 10.0]
        assert sum(len(event.words) for event in words) <= 10.0 * UPDATED_WORDS_PER_S + 2 * number
    assert [event.end_s for event in sent[:9]] == pytest.approx([0.4 * number for number in range(9)])


def test_a_turn_without_a_word_ends_after_two_seconds() -> None:
    events = run(TurnRules(), ["voice"] + ["quiet"] * 40)
    end = events[-1]
    assert (end.kind, end.words, end.trigger) == (TurnKind.END, (), Trigger.TIMEOUT)
    assert end.end_s - end.start_s == pytest.approx(WORDLESS_S, abs=STEP_S)


def test_a_turn_has_a_greatest_length() -> None:
    words = [Word("a", 0.0, 1.0, 1.0)] * MAX_WORDS
    start, end = Turns(TurnRules()).advance(1.0, words)
    assert (start.kind, end.kind, end.trigger) == (TurnKind.START, TurnKind.END, Trigger.TIMEOUT)


EAGER = TurnRules(end_threshold=score_of(0.7), eager_threshold=score_of(0.2))


def kinds(events: list[TurnEvent]) -> list[str]:
    return [event.kind.name for event in events if event.kind is not TurnKind.UPDATE]


SPEECH = ["speech"] * 6


def test_a_fork_ends_the_turn_by_the_silence_of_the_audio() -> None:
    events = run(EAGER, [*SPEECH, "word", "quiet", "fork", *["quiet"] * 20], DELAY_S)
    assert kinds(events) == ["START", "EAGER", "END"]
    start, eager, end = [event for event in events if event.kind is not TurnKind.UPDATE]
    spoken_s = len(SPEECH) * STEP_S
    assert texts(start) == texts(eager) == texts(end) == ["w6"]
    assert eager.end_s == pytest.approx(spoken_s + 3 * STEP_S)
    assert end.end_s == pytest.approx(spoken_s + 9 * STEP_S)  # the first step end after 0.7 s


def test_updates_repeat_the_early_words_until_the_stream_is_decoded_as_far() -> None:
    events = run(EAGER, [*SPEECH, "word", "quiet", "fork more", *["quiet"] * 8], DELAY_S)
    kinds_and_texts = [(event.kind.name, texts(event)) for event in events]
    assert kinds_and_texts == [
        ("START", ["w6"]),
        ("EAGER", ["w6", "f8"]),
        ("UPDATE", ["w6", "f8"]),
        ("RESUMED", ["w6"]),
        ("EAGER", ["w6"]),
    ]


def test_speech_that_comes_back_takes_the_early_end_back_at_once() -> None:
    events = run(EAGER, [*SPEECH, "word", "quiet", "fork", "quiet", "speech", "quiet"], DELAY_S)
    assert kinds(events) == ["START", "EAGER", "RESUMED"]
    assert events[-1].end_s == pytest.approx((len(SPEECH) + 5) * STEP_S)


def test_other_words_of_the_stream_take_the_early_end_back_and_are_counted() -> None:
    turns = Turns(EAGER, delay_s=DELAY_S)
    word, other = Word("a", 0.0, 0.1, 1.0), Word("b", 0.0, 0.1, 1.0)
    turns.update_silence(0.32, 0.24)
    turns.fork(0.32, ForkWords((word,), (word,), 0.4, (word,)))
    assert turns.state is TurnState.AWAITING
    (update,) = turns.advance(0.64, (), [other])
    assert (update.kind, texts(update)) == (TurnKind.UPDATE, ["a"]), "the stream is not decoded as far as the fork"
    (resumed,) = turns.advance(0.72, (), [other])
    assert (resumed.kind, texts(resumed), turns.differing) == (TurnKind.RESUMED, ["b"], 1)


def test_words_of_an_ended_turn_are_dropped_from_the_stream_and_compared() -> None:
    turns = Turns(TurnRules(end_threshold=score_of(0.3)), delay_s=DELAY_S)
    turns.update_silence(0.4, 0.32)
    old = Word("a", 0.0, 0.1, 1.0), Word("b", 0.1, 0.2, 1.0)
    (start, end) = turns.fork(0.4, ForkWords(old, old, 0.48, old))
    assert (start.kind, end.kind, end.trigger) == (TurnKind.START, TurnKind.END, Trigger.MODEL)
    assert not turns.advance(0.48, (), old[:1])
    assert not turns.advance(0.8, (), (old[0], Word("c", 0.1, 0.2, 1.0)))
    assert turns.differing == 1
    new = Word("d", 0.9, 1.0, 1.0)
    (start,) = turns.advance(1.4, old, [new])
    assert (start.kind, start.index, texts(start)) == (TurnKind.START, 1, ["d"])
