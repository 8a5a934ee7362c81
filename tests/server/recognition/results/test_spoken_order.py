"""Finals in the order in which they were said: for any conversation, any way of answering, and with second passes."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from server.recognition.events import Closed, Final, Partial
from server.recognition.session_options import Limits
from tests.support.servers.recognizers.shouting import ShoutingDecoder
from tests.support.servers.recognizers.spelling import FRAME, silence, spell
from tests.support.streams.session_bench import SessionBench

RATE = 16_000
LIMITS = Limits(max_backlog_s=1e9)


def conversation(*said: tuple[int, float, str], length_s: float) -> np.ndarray:
    """Return (S, 2) audio: channel, start in seconds and text of each utterance, at whole frames."""
    audio = np.zeros((round(length_s * RATE), 2), np.int16)
    for channel, start_s, text in said:
        speech = spell(text)
        start = round(start_s * RATE / FRAME) * FRAME
        audio[start : start + len(speech), channel] = speech
    return audio


def bench(**options: Any) -> SessionBench:
    given: dict[str, Any] = {"channels": 2, "multichannel": True, "spoken_order": True}
    return SessionBench(limits=LIMITS, **(given | options))


def said(bench: SessionBench) -> list[tuple[int, str, bool]]:
    """Return channel, text and overlap of each final with words."""
    finals = [event for event in bench.events if isinstance(event, Final) and event.words]
    return [(one.channel, " ".join(word.text for word in one.words), one.overlap) for one in finals]


LONG = "a long tale that does not end before the other side has said what it has to say"
TALE_S = len(spell(LONG)) / RATE
TALK = conversation(
    (0, 0.2, LONG), (1, 1.0, "yes"), (1, TALE_S + 1.5, "and then"), (0, TALE_S + 3.5, "nothing"), length_s=TALE_S + 6
)


def test_a_short_answer_during_a_long_sentence_follows_it_and_both_overlap() -> None:
    order = bench()
    for at in range(0, len(TALK), 1_600):
        order.send(TALK[at : at + 1_600])
        order.answer()
    order.close()
    order.answer()
    assert said(order) == [(0, LONG, True), (1, "yes", True), (1, "and then", False), (0, "nothing", False)]
    assert isinstance(order.events[-1], Closed)
    plain = bench(spoken_order=False)
    plain.send(TALK)
    plain.answer()
    plain.close()
    plain.answer()
    assert {overlap for _, _, overlap in said(plain)} == {False}


def test_a_final_waits_only_for_what_began_earlier() -> None:
    order = bench()
    order.send(conversation((0, 0.5, "one"), (1, 0.8, LONG), length_s=TALE_S + 1)[: 2 * RATE])
    order.answer()
    assert said(order) == [(0, "one", False)], "the long one began later"


def test_results_of_a_channel_stay_in_their_order_while_its_final_waits() -> None:
    order = bench()
    audio = conversation((0, 0.1, LONG), (1, 0.5, "yes"), (1, 1.8, "again"), length_s=TALE_S + 2)
    for at in range(0, len(audio), 1_280):
        order.send(audio[at : at + 1_280])
        order.answer()
    other = [event for event in order.events if isinstance(event, (Final, Partial)) and event.channel == 1]
    ends = [(event.start_s, isinstance(event, Final)) for event in other if event.words]
    assert [start for start, _ in ends] == sorted(start for start, _ in ends)
    assert [text for channel, text, _ in said(order) if channel == 1] == ["yes", "again"]


utterance = st.tuples(st.integers(0, 1), st.floats(0.0, 1.5), st.text("abcde", min_size=1, max_size=6))


FINALS_AT_ONCE = [
    (0, 0.8358733598934067, "bb"),
    (0, 0.4453896494587653, "d"),
    (1, 0.0, "bbcab"),
    (1, 1.0130511837692233, "daad"),
]  # of one channel, by a second pass


@example(FINALS_AT_ONCE, 3658120915, True)
@given(st.lists(utterance, min_size=1, max_size=8), st.integers(0, 2**32), st.booleans())
def test_any_conversation_comes_in_the_order_of_its_first_words(
    parts: list[tuple[int, float, str]], seed: int, second_pass: bool
) -> None:
    ends_s, placed = [0.0, 0.0], list[tuple[int, float, str]]()
    for channel, pause_s, text in parts:
        start_s = ends_s[channel] + pause_s
        placed.append((channel, start_s, text))
        ends_s[channel] = start_s + len(spell(text)) / RATE + 0.05
    audio = conversation(*placed, length_s=max(ends_s) + 1.0)
    dice = random.Random(seed)
    order = bench(decoder=ShoutingDecoder() if second_pass else None)
    order.late = second_pass
    while len(audio):
        size = dice.randint(1, 20_000)
        order.send(audio[:size])
        audio = audio[size:]
        for channel in dice.sample((0, 1), 2):
            order.answer(dice.randint(0, 20), channel)
        while order.opened and dice.random() < 0.5:
            order.resolve(dice.randrange(len(order.opened)))
    order.close()
    order.answer()
    while order.opened:
        order.resolve(dice.randrange(len(order.opened)))
    assert isinstance(order.events[-1], Closed)
    finals = [event for event in order.events if isinstance(event, Final) and event.words]
    starts = [final.words[0].start_s for final in finals]
    assert starts == sorted(starts)
    for channel in (0, 1):
        mine = [final for final in finals if final.channel == channel]
        texts = "".join(word.text for final in mine for word in final.words).lower()
        assert texts == "".join(text for one, _, text in placed if one == channel)
    for one, after in pairwise(finals):
        if one.channel != after.channel and after.words[0].start_s < one.words[-1].end_s:
            assert one.overlap
            assert after.overlap


def test_a_stream_of_one_channel_has_no_order_to_keep() -> None:
    order = SessionBench(spoken_order=True)
    order.send(np.concatenate([spell("hello"), silence(1.0)]))
    order.answer()
    assert said(order) == [(0, "hello", False)]
