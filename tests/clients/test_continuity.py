"""`Continuity` over cut connections, case by case: tickets, replays, key terms, contexts and drains."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.support.clients.continuity_wire import PLENTY
from tutti_asr_client.audio_shape import AudioShape
from tutti_asr_client.continuity import Beginning, Continuity
from tutti_asr_client.messages import (
    ConfigureSuccess,
    ContextFailure,
    ContextSuccess,
    Metadata,
    Results,
    Resumed,
    RewindFailure,
    SpeechStarted,
    Ticket,
    UtteranceEnd,
    decode,
)


def results(start: float, duration: float, text: str = "", *, final: bool = True, finalized: bool = False) -> Results:
    word = {"word": text, "start": start, "end": start + duration, "confidence": 0.5}
    return msgspec.convert(
        {
            "type": "Results",
            "start": start,
            "duration": duration,
            "is_final": final,
            "from_finalize": finalized,
            "channel": {"alternatives": [{"transcript": text, "words": [word] if text else []}]},
        },
        Results,
    )


def frames(stream: Continuity) -> list[Any]:
    found = []
    while (frame := stream.next_frame()) is not None:
        found.append(frame if isinstance(frame, bytes) else msgspec.json.decode(frame))
    return found


def opened(held_bytes: int = PLENTY) -> Continuity:
    """Return a connected stream of 100 samples a second, two bytes each."""
    stream = Continuity(AudioShape(100, 2), held_bytes)
    stream.connected()
    return stream


def reconnect(stream: Continuity) -> None:
    stream.lost()
    stream.connected()


def test_a_new_connection_first_sends_the_latest_ticket_with_finals_and_cursor() -> None:
    stream = opened()
    stream.add_audio(bytes(600))
    assert frames(stream) == [bytes(600)]
    for message in (results(0, 1.0, "yes"), Ticket("t1", 1.2), results(1.0, 0.7, "no", final=False), Ticket("t2", 1.5)):
        stream.receive(message)
    reconnect(stream)
    assert frames(stream) == [{"type": "Resume", "ticket": "t2", "finals": 1, "cursor_s": 1.7}], "no audio before it"
    assert stream.receive(Resumed(1.5)) == []
    assert stream.beginning is Beginning.TICKET
    assert frames(stream) == [bytes(300)]
    assert stream.replayed_s == pytest.approx(1.5)


def test_a_ticket_sent_before_the_answer_to_resume_is_ignored() -> None:
    stream = opened()
    stream.add_audio(bytes(400))
    frames(stream)
    stream.receive(Ticket("ours", 1.0))
    reconnect(stream)
    stream.receive(Ticket("of an empty stream", 0.0))
    reconnect(stream)
    assert frames(stream)[0]["ticket"] == "ours"


def test_the_send_log_is_bounded_and_drops_only_sent_audio() -> None:
    stream = opened(held_bytes=100_000)
    pushed = 0
    while stream.send_log.has_room(30_000):
        stream.add_audio(bytes(30_000))
        pushed += 1
    assert (pushed, stream.send_log.first) == (3, 0), "nothing was sent, so nothing may be dropped"
    frames(stream)
    for _ in range(20):
        assert stream.send_log.has_room(30_000)
        stream.add_audio(bytes(30_000))
        frames(stream)
        assert stream.send_log.held_bytes <= 100_000
    stream.lost()
    assert not stream.send_log.has_room(30_000)
    stream.connected()
    assert stream.lost_s == pytest.approx(stream.send_log.first / 200)
    assert sum(len(pcm) for pcm in frames(stream)) == stream.send_log.end - stream.send_log.first
    before = stream.lost_s
    reconnect(stream)
    assert stream.lost_s == before, "a gap is counted once"


def test_audio_is_dropped_once_both_finals_and_the_latest_ticket_cover_it() -> None:
    stream = opened()
    stream.add_audio(bytes(60_000))
    frames(stream)
    stream.receive(Ticket("t", 250.0))
    assert stream.send_log.first == 0, "the ticket may yet be refused"
    stream.receive(results(0, 200.0, "yes"))
    assert 0 < stream.send_log.first <= 40_000
    stream.receive(results(200.0, 100.0, "yes"))
    assert stream.send_log.first <= 50_000, "the ticket needs the rest"
    stream.receive(Ticket("t", 300.0))
    assert stream.send_log.held_bytes == 0


def test_speech_started_and_utterance_end_are_delivered_once() -> None:
    stream = opened()
    stream.add_audio(bytes(600))
    frames(stream)
    assert stream.receive(SpeechStarted(0.25)) == [SpeechStarted(0.25)]
    stream.receive(results(0, 1.0, "yes"))
    assert stream.receive(UtteranceEnd(0.75)) == [UtteranceEnd(0.75)]
    assert stream.receive(SpeechStarted(1.25)) == [SpeechStarted(1.25)]
    stream.receive(results(1.0, 0.5, "no", final=False))
    reconnect(stream)
    frames(stream)
    assert stream.receive(SpeechStarted(0.27)) == [], "a little later, but already delivered"
    assert stream.receive(SpeechStarted(1.0)) == [SpeechStarted(2.0)]
    assert stream.receive(UtteranceEnd(0.9)) == [UtteranceEnd(1.9)]


def test_the_final_of_a_drain_is_delivered_and_its_metadata_is_not() -> None:
    stream = opened()
    stream.add_audio(bytes(400))
    frames(stream)
    assert stream.receive(results(0, 1.5, "half")) == [results(0, 1.5, "half")]
    assert stream.receive(Metadata("r", 1.5)) == []
    reconnect(stream)
    assert frames(stream) == [bytes(100)]
    assert stream.receive(results(0, 0)) == [], "a drain during silence has no text"
    stream.close()
    assert frames(stream) == [{"type": "CloseStream"}]
    assert len(stream.receive(results(0, 0.5, "whole"))) == 1
    stream.receive(Metadata("s", 0.5))
    assert stream.closing_metadata("s") == Metadata("s", 2.0)
    assert stream.complete


def terms(*frame: Any) -> list[Any]:
    """Return what key terms and texts the frames have, and the sizes of audio."""
    return [len(one) if isinstance(one, bytes) else one.get("keyterms", one.get("text")) for one in frame]


def test_contexts_end_after_their_time_and_those_that_were_refused_are_not_repeated() -> None:
    stream = opened()
    stream.control("Context", text="ask for Zoltan")
    stream.add_audio(bytes(2 * 100 * 29))
    stream.control("Context", text="too often")
    frames(stream)
    stream.receive(ContextSuccess(("zoltan",)))
    assert stream.receive(ContextFailure("CODE")) == [ContextFailure("CODE")]
    stream.receive(results(0, 29.0, "yes"))
    reconnect(stream)
    assert terms(*frames(stream)) == ["zoltan"]
    stream.receive(ContextSuccess(("zoltan",)))
    stream.add_audio(bytes(200))
    frames(stream)
    stream.receive(results(0, 1.0, "yes"))
    reconnect(stream)
    assert frames(stream) == [], "30 s are over"


@pytest.mark.parametrize(
    ("kind", "changed"), [("Configure", {"keyterms": ["Mircea"]}), ("Context", {"text": "Mircea"})]
)
def test_an_answer_may_come_before_an_older_ticket_at_its_position(kind: str, changed: dict[str, object]) -> None:
    """Key terms need no step of the model, so they are answered before the ticket of the audio before them."""
    stream = opened()
    stream.add_audio(bytes(400))
    stream.control("Configure", keyterms=["old"])
    stream.control(kind, **changed)
    stream.add_audio(bytes(200))
    frames(stream)
    stream.receive(ConfigureSuccess(("old",)))
    answer = ConfigureSuccess(("Mircea",)) if kind == "Configure" else ContextSuccess(("mircea",))
    assert stream.receive(answer) == [answer]
    stream.receive(Ticket("of the audio before", 2.0))
    reconnect(stream)
    frames(stream)
    stream.receive(Resumed(2.0))
    expected = [["Mircea"]] if kind == "Configure" else [["old"], "Mircea"]
    assert terms(*frames(stream)) == [*expected, 200]
    assert stream.receive(answer) == []


def correction(start: float, duration: float, text: str) -> Results:
    return msgspec.structs.replace(results(start, duration, text), correction=True)


def test_a_correction_is_delivered_once_and_a_lost_one_is_asked_for_again() -> None:
    stream = Continuity(AudioShape(100, 2), PLENTY, rewind_s=2.0)
    stream.connected()
    stream.add_audio(bytes(1_000))
    stream.control("Rewind", seconds=2.0, keyterms=["Mircea"])
    stream.control("Rewind", seconds=9.0, keyterms=[])
    frames(stream)
    for start, end in ((0.0, 1.5), (1.5, 2.5), (2.5, 4.0)):
        stream.receive(results(start, end - start, "yes"))
    assert stream.receive(correction(2.0, 2.0, "Mircea")) == [correction(2.0, 2.0, "Mircea")]
    assert stream.complete is False
    reconnect(stream)
    audio, again = frames(stream)
    assert len(audio) == 700, "from the end of the last final that is 2 s before the end of the last"
    assert (again["type"], again["seconds"]) == ("Rewind", 9.0)
    assert stream.receive(results(0.0, 2.5, "yes")) == []
    failure = RewindFailure("CODE")
    assert stream.receive(failure) == [failure]
    assert stream.receive(results(2.5, 1.0, "no")) == [results(4.0, 1.0, "no")]


def test_a_configure_in_a_refused_ticket_is_sent_again_if_the_next_ticket_lacks_it() -> None:
    stream = opened()
    stream.add_audio(bytes(400))
    stream.control("Configure", keyterms=["late"])
    stream.add_audio(bytes(200))
    frames(stream)
    for message in (results(0, 0.5, "yes"), ConfigureSuccess(("late",)), Ticket("knows", 2.0, 1)):
        stream.receive(message)
    reconnect(stream)
    frames(stream)
    refused = decode('{"type":"ResumeRefused","code":"TICKET_MODEL"}')
    assert refused is not None
    stream.receive(refused)
    frames(stream)
    stream.receive(Resumed(0.5))
    frames(stream)
    stream.receive(Ticket("does not", 2.0, 1))  # made before the message was received there
    reconnect(stream)
    frames(stream)
    stream.receive(Resumed(2.0))
    again, audio = frames(stream)
    assert (again["keyterms"], len(audio)) == (["late"], 200)


def test_a_finalize_at_a_tickets_position_is_sent_again_if_the_ticket_lacks_it() -> None:
    stream = opened()
    stream.add_audio(bytes(400))
    stream.control("Finalize")
    stream.add_audio(bytes(200))
    frames(stream)
    stream.receive(Ticket("early", 1.0, 0))
    stream.receive(results(0, 2.0, "yes", finalized=True))
    reconnect(stream)
    frames(stream)
    stream.receive(Resumed(1.0))
    assert frames(stream) == [bytes(200), {"type": "Finalize"}, bytes(200)]
    stream.receive(Ticket("at its place", 2.0, 0))  # its answer, known here, is not in this state
    reconnect(stream)
    frames(stream)
    stream.receive(Resumed(2.0))
    assert frames(stream)[0] == {"type": "Finalize"}, "else its final would count as the answer to the next one"


def test_a_stream_is_complete_without_the_close_but_not_without_every_answer() -> None:
    stream = opened()
    stream.add_audio(bytes(200))
    stream.control("Configure", keyterms=["late"])
    stream.close()
    frames(stream)
    stream.receive(results(0, 1.0, "yes"))
    assert not stream.complete, "the key terms have no answer yet"
    stream.receive(ConfigureSuccess(("late",)))
    assert stream.complete
