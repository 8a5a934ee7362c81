"""Finals that are decoded again: their text, their order among the other events, and what is held meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.errors import CloseReason
from server.recognition.events import Closed, Event, Final, FinalReason, UtteranceGap
from server.recognition.session_options import Limits
from tests.support.servers.recognizers.shouting import ShoutingDecoder
from tests.support.servers.recognizers.spelling import CONFIG, silence, spell
from tests.support.streams.resume_bench import ResumableBench
from tests.support.streams.session_bench import SessionBench

LIMITS = Limits(silence_endpoint_ms=None, max_backlog_s=1e9)


def bench(**options: Any) -> SessionBench:
    made = SessionBench(limits=LIMITS, decoder=ShoutingDecoder(), **options)
    made.late = True
    return made


def finals(made: SessionBench) -> list[tuple[str, FinalReason]]:
    return [(" ".join(word.text for word in final.words), final.reason) for final in made.finals()]


def test_each_final_that_ends_a_text_has_the_words_of_the_second_pass() -> None:
    made = bench(utterance_end_ms=700)
    made.late = False
    for audio in (spell("endpoint"), silence(0.6), spell("finalize")):
        made.send(audio)
    made.finalize()
    made.send(spell("close"))
    made.answer()
    made.close()
    made.answer()
    endings = [FinalReason.ENDPOINT, FinalReason.FINALIZE, FinalReason.CLOSE]
    assert finals(made) == list(zip(["ENDPOINT", "FINALIZE", "CLOSE"], endings, strict=True))


def test_a_gap_that_freezes_words_has_them_and_the_end_time_of_the_last() -> None:
    made = bench(utterance_end_ms=1_000, endpointing_ms=None)
    made.decoder.later_s = CONFIG.frame_s  # type: ignore[attr-defined]
    made.send(spell("gap"))
    made.send(silence(2.0))
    made.answer()
    assert not made.finals()
    made.resolve()
    (final,) = made.finals()
    assert final.words[0].text == "GAP"
    (gap,) = [event for event in made.events if isinstance(event, UtteranceGap)]
    assert gap.last_word_end_s == final.words[0].end_s
    assert made.events.index(final) < made.events.index(gap)


def test_words_that_a_cut_takes_are_stable_and_stay() -> None:
    made = SessionBench(limits=Limits(max_utterance_s=1.0, max_backlog_s=1e9), decoder=ShoutingDecoder())
    made.send(spell("one two three four five "))
    made.answer()
    (first, *_) = finals(made)
    assert first[1] is FinalReason.MAX_LEN
    assert first[0].islower()


def test_another_channel_does_not_wait() -> None:
    made = bench(channels=2, multichannel=True)
    left, right = spell("ab"), spell("cd")
    made.send(b"".join(a.tobytes() + b.tobytes() for a, b in zip(left, right, strict=True)))
    made.finalize()
    made.answer(channel=0)
    made.answer(channel=1)
    assert not made.finals(0)
    made.resolve(1)
    assert [made.text(0), made.text(1)] == ["", "CD"]
    made.close()
    assert not any(isinstance(event, Closed) for event in made.events)
    made.resolve()
    assert isinstance(made.events[-1], Closed)


def test_audio_after_a_pending_final_is_backlog() -> None:
    made = bench()
    made.send(spell("ab"))
    made.finalize()
    made.answer()
    made.send(silence(1.6))
    made.answer()
    assert made.session.backlog_s > 1.5
    made.resolve()
    assert made.session.backlog_s == 0


@pytest.mark.parametrize("found", [None, ()])
def test_without_words_of_the_second_pass_those_of_the_first_are_sent(found: tuple[()] | None) -> None:
    made = bench()
    made.send(spell("ab"))
    made.finalize()
    made.answer()
    final = made.opened.pop()
    ((events, _), *_) = made.session.pending.resolve(final, found)
    assert [word.text for event in events if isinstance(event, Final) for word in event.words] == ["ab"]


def test_a_ticket_after_a_pending_final_waits_for_it_and_an_earlier_one_does_not() -> None:
    made = ResumableBench(limits=LIMITS, decoder=ShoutingDecoder())
    made.late = True
    made.send(spell("ab "))
    made.mark()
    made.send(spell("cd"))
    made.finalize()
    made.mark()
    made.answer()
    assert [saved.finals for saved in made.saved] == [0]
    made.resolve()
    assert [saved.finals for saved in made.saved] == [0, 1]
    assert made.text() == "ab CD"


words = st.text("abc ", min_size=1, max_size=8)


@settings(max_examples=60, deadline=None)
@given(
    script=st.lists(st.one_of(words, st.floats(0.2, 1.2), st.just("finalize")), max_size=8),
    order=st.randoms(use_true_random=False),
    resumable=st.booleans(),
    reason=st.sampled_from([CloseReason.CLOSE_STREAM, CloseReason.DRAIN]),
)
def test_the_events_are_the_same_whenever_the_second_pass_ends(
    script: list[str | float], order: Any, resumable: bool, reason: CloseReason
) -> None:
    """Late, early, in any order: a client sees the same results in the same order, no one before its final."""

    def run(*, late: bool) -> list[Event]:
        made = SessionBench(limits=LIMITS, decoder=ShoutingDecoder(), resumable=resumable, utterance_end_ms=700)
        made.late = late
        for piece in script:
            if piece == "finalize":
                made.finalize()
            else:
                made.send(spell(piece) if isinstance(piece, str) else silence(piece))
            made.answer()
            while made.opened and order.random() < 0.5:
                made.resolve(order.randrange(len(made.opened)))
        made.close(reason)
        made.answer()
        while made.opened:
            made.resolve(order.randrange(len(made.opened)))
        return made.events

    expected = run(late=False)
    assert run(late=True) == expected
    assert isinstance(expected[-1], Closed)
