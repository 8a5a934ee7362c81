"""Finals decoded again in a session: which audio, when, over flushes, and through a socket."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import InvalidStatus

from model.ctc.beam import BeamDecoder
from model.ctc.rewind import BeamRewind
from server.errors import KeytermsTooOften
from server.recognition.events import Correction, Final
from server.recognition.messages import RewindFinals
from tests.support.servers.live_server import LiveServer
from tests.support.servers.recognizers.spelling import CONFIG, silence, spell
from tests.support.streams.session_bench import SessionBench

Start = Callable[..., LiveServer]
REWIND = 10.0


def beam() -> BeamDecoder:
    return BeamDecoder(CONFIG.vocabulary, CONFIG.frame_s, beams=8)


def bench(**options: Any) -> SessionBench:
    return SessionBench(decoder=BeamRewind(beam()), rewind_s=REWIND, **options)


def corrections(one: SessionBench) -> list[Correction]:
    return [event for event in one.events if isinstance(event, Correction)]


def finals(one: SessionBench) -> list[Final]:
    return [event for event in one.events if isinstance(event, Final)]


def texts(event: Correction | Final) -> list[str]:
    return [word.text for word in event.words]


def test_a_correction_has_the_words_of_the_finals_of_the_last_seconds() -> None:
    one = bench()
    one.send(np.concatenate([spell("one two "), silence(1.5), spell("three "), silence(1.5), spell("open")]))
    one.answer()
    assert [texts(final) for final in finals(one)] == [["one", "two"], ["three"]]
    one.events += one.session.take(RewindFinals(REWIND, []))
    (correction,) = corrections(one)
    assert correction.words == tuple(word for final in finals(one) for word in final.words)
    last = finals(one)[-1]
    assert correction.start_s + correction.duration_s == pytest.approx(last.start_s + last.duration_s)
    (shorter,) = one.session.take(RewindFinals(one.session.audio.received_s - last.start_s, []))
    assert isinstance(shorter, Correction)
    assert texts(shorter) == ["three"]
    assert shorter.start_s == pytest.approx(finals(one)[0].words[-1].end_s)
    assert shorter.before == (), "a sentence of its own"


def test_the_finals_before_a_flush_are_decoded_again_too() -> None:
    one = bench()
    for text in ("one ", "two "):
        one.send(np.concatenate([spell(text), silence(0.9)]))
        one.finalize()
        one.answer()
    (correction,) = one.session.take(RewindFinals(REWIND, []))
    assert isinstance(correction, Correction)
    assert texts(correction) == ["one", "two"]
    assert correction.words == tuple(word for final in finals(one) for word in final.words)


def test_a_correction_follows_the_steps_before_it() -> None:
    """So it depends on the audio sent before it alone, and `Finalize` can precede it."""
    late, early = bench(), bench()
    for one in (late, early):
        one.send(np.concatenate([spell("one two "), silence(0.5)]))
        if one is early:
            one.answer()
        one.finalize()
        if one is early:
            one.answer()
        one.events += one.session.take(RewindFinals(REWIND, []))
        assert bool(corrections(one)) is (one is early)
        one.send(spell("later "))
        one.answer()
    assert corrections(late) == corrections(early)
    assert texts(corrections(late)[0]) == ["one", "two"]


def test_nothing_said_gives_an_empty_correction_and_many_requests_are_refused() -> None:
    one = bench()
    one.send(silence(1.0))
    one.answer()
    (correction,) = one.session.take(RewindFinals(REWIND, []))
    assert isinstance(correction, Correction)
    assert correction.words == ()
    with pytest.raises(KeytermsTooOften):
        [one.session.take(RewindFinals(REWIND, ["name"])) for _ in range(9)]


def test_key_terms_of_a_request_count_for_it_alone() -> None:
    one = bench()
    one.send(np.concatenate([spell("one "), silence(1.5)]))
    one.answer()
    before = one.session.keyterms.current
    one.session.take(RewindFinals(REWIND, ["name"]))
    assert one.session.keyterms.current is before


# Through a socket.


def test_rewind_is_answered_with_a_final_that_is_marked(live_server: Start) -> None:
    with live_server(decoder=beam()).listen(rewind=10, smart_format="true") as client:
        client.send(np.concatenate([spell("hello there "), silence(1.0)]))
        client.say("Finalize")
        client.say("Rewind", seconds=10, keyterms=["there"])
        client.say("Rewind", seconds=11)
        client.say("Rewind", seconds=5, channel=1)
        client.say("Rewind", seconds=5, keyterms=["x" * 3_000])
        frames = client.finish()
    (found,) = [frame for frame in frames if frame.get("correction")]
    assert found["is_final"]
    assert not found["speech_final"]
    assert found["channel"]["alternatives"][0]["transcript"] == "Hello, there."
    assert found["start"] == 0.0
    refused = [frame for frame in frames if frame["type"] == "RewindFailure"]
    assert [frame["description"].partition(":")[0] for frame in refused] == ["seconds", "keyterms"]
    assert any("channel: 1" in frame.get("description", "") for frame in frames if frame["type"] == "Error")


def test_a_key_whose_streams_are_redacted_has_no_rewind(live_server: Start, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"{hashlib.sha256(b'calls').hexdigest()} calls redact=pci\n")
    server = live_server(decoder=beam(), api_keys_file=path)
    with pytest.raises(InvalidStatus) as refused:
        server.listen({"Authorization": "Token calls"}, rewind=5)
    assert refused.value.response.headers["dg-error"].startswith("rewind: cannot be combined with redact")
