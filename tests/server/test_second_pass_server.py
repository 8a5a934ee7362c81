"""The second pass in a real server: clients' text, metrics, failures, drain, and streams that move meanwhile."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy as np
import pytest
from structlog.testing import capture_logs

from server.resume.tickets import new_key
from tests.support.clients.resume_client import ResumingClient
from tests.support.servers.live_server import LiveServer, transcript
from tests.support.servers.recognizers.shouting import ShoutingDecoder
from tests.support.servers.recognizers.spelling import silence, spell

Start = Callable[..., LiveServer]


@pytest.fixture
def decoder() -> Iterator[ShoutingDecoder]:
    made = ShoutingDecoder()
    yield made
    made.gate.set()


def test_live_finals_have_its_words_and_it_is_counted(live_server: Start, decoder: ShoutingDecoder) -> None:
    server = live_server(decoder=decoder)
    with server.listen(interim_results="true") as client:
        client.send(spell("one"))
        client.say("Finalize")
        client.send(spell("two"))
        assert transcript(client.finish()) == "ONE TWO"
    assert server.metric("tutti_second_decode_seconds_count") == 2
    assert server.metric("tutti_second_decode_wait_seconds_count") == 2
    assert server.metric("tutti_second_decode_queue") == 0
    assert server.metric("tutti_second_decode_failures_total") == 0


def test_where_it_fails_the_first_decodes_text_is_sent(live_server: Start, decoder: ShoutingDecoder) -> None:
    decoder.fails = True
    server = live_server(decoder=decoder)
    with capture_logs() as lines, server.listen() as client:
        client.send(spell("one"))
        assert transcript(client.finish()) == "one"
    assert server.metric("tutti_second_decode_failures_total") == 1
    assert [line["event"] for line in lines if line["log_level"] == "error"] == [
        "second pass failed, the first pass's text is sent"
    ]


def test_results_of_a_step_wait_for_the_final_before_them(live_server: Start, decoder: ShoutingDecoder) -> None:
    decoder.gate.clear()
    server = live_server(decoder=decoder)
    with server.listen(interim_results="true") as client:
        client.send(spell("one"))
        client.say("Finalize")
        client.send(spell("two three"))
        client.send(silence(0.4))
        server.wait_until(lambda: sum(server.model.rows) >= 18)  # all that was said is through the model
        assert server.metric('tutti_results_total{kind="final"}') == 0
        decoder.gate.set()
        frames = client.finish()
    results = [f for f in frames if f["type"] == "Results"]
    finals = [number for number, frame in enumerate(results) if frame["is_final"]]
    texts = [frame["channel"]["alternatives"][0]["transcript"] for frame in results]
    assert texts[finals[0]] == "ONE"
    assert not any("t" in text for text in texts[: finals[0]])
    assert transcript(frames) == "ONE two THREE"


def test_a_drain_waits_for_pending_finals(live_server: Start, decoder: ShoutingDecoder) -> None:
    decoder.gate.clear()
    server = live_server(decoder=decoder, drain_timeout_s=0.1)
    with server.listen() as client:
        client.send(spell("half a sen"))
        server.server.handle_exit(signal.SIGTERM, None)
        server.wait_until(lambda: bool(server.replica.models.default.recognizer.slots.slots_used))
        decoder.gate.set()
        frames, code, _ = client.rest()
    assert (transcript(frames), code) == ("half a SEN", 1012)
    server.join()


def test_a_stream_lost_while_its_final_is_open_has_it_from_the_next_server() -> None:
    """The ticket is from before that final: the next server decodes the segment again from its kept state."""
    audio = np.concatenate([part for text in ("ab", "cd", "ef", "gh") for part in (spell(text), silence(0.9))])[:, None]
    resume_keys, held = (new_key(),), ShoutingDecoder()
    with ExitStack() as stack:
        free, stuck = (
            stack.enter_context(LiveServer(decoder=decoder, resume_keys=resume_keys))
            for decoder in (ShoutingDecoder(), held)
        )
        whole = ResumingClient([free], audio, 16_000).run(())
        held.free = 1
        held.gate.clear()
        until_s = 2 * (len(spell("ab")) / 16_000 + 0.9)
        moved = ResumingClient([stuck, free], audio, 16_000).run([until_s + 0.1])
        held.gate.set()
    assert moved.results == whole.results
    texts = [final["channel"]["alternatives"][0]["transcript"] for final in moved.finals]
    assert [text for text in texts if text] == ["AB", "CD", "EF", "GH"]
