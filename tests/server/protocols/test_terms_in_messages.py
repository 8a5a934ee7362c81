"""Key terms that messages ask for: built on a thread while reading is paused, and within the caller's share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from model.ctc import bias
from model.ctc.beam import BeamDecoder
from server.coordination.term_building import CHARACTERS_PER_S
from tests.server.protocols.deepgram.test_keyterm_server import MishearingModel
from tests.support.protocols.wire_stream import WireStream
from tests.support.servers.live_server import LiveServer, transcript
from tests.support.servers.recognizers.spelling import CONFIG, silence, spell

AUDIO = np.concatenate([spell("the qite flew "), silence(1.0)])  # "kite", as this model recognizes it
SETS = round(15 * CHARACTERS_PER_S / 2_000)  # three times what a caller may build at once


def names(first: str) -> list[str]:
    """Return "kite" and 190 words of 12 letters, which start with `first`."""
    letters = "abcdefghijklmnopqrs"
    return ["kite", *(f"{first:x<10}{a}{b}" for a in letters for b in letters[:10])]


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the threads that build automata."""
    names: list[str] = []
    build = bias.term_automaton

    def built(*args: Any) -> Any:
        names.append(threading.current_thread().name)
        return build(*args)

    monkeypatch.setattr(bias, "term_automaton", built)
    return names


@pytest.fixture
def server(live_server: Callable[..., LiveServer]) -> LiveServer:
    decoder = BeamDecoder(CONFIG.vocabulary, CONFIG.frame_s, beams=4)
    decoder.warm_up()
    return live_server(model=MishearingModel(), decoder=decoder)


@pytest.mark.parametrize("kind", ["Configure", "Context", "Rewind"])
def test_terms_of_deepgrams_messages_are_built_on_a_thread(server: LiveServer, threads: list[str], kind: str) -> None:
    words = names(f"dg{kind.lower()}")
    fields: Mapping[str, Mapping[str, Any]] = {
        "Configure": {"keyterms": words},
        "Context": {"text": " ".join(words[:60])},
        "Rewind": {"seconds": 3, "keyterms": words[:100]},
    }
    with server.listen(rewind="10", interim_results="false") as client:
        if kind == "Rewind":
            client.send(AUDIO)
            client.say("Finalize")
            client.until(lambda frame: frame.get("from_finalize") is True)
        client.say(kind, **fields[kind])
        client.send(AUDIO)
        frames = client.finish()
    assert not any(frame["type"].endswith("Failure") for frame in frames), frames
    assert transcript(frames).startswith("the kite" if kind == "Configure" else "the")
    assert threads
    assert all(name.startswith("keyterms") for name in threads)


def test_terms_while_a_context_holds_are_built_on_a_thread_with_and_without_it(
    server: LiveServer, threads: list[str]
) -> None:
    with server.listen(interim_results="false") as client:
        client.say("Context", text=" ".join(names("held")[1:31]))
        client.say("Configure", keyterms=names("both")[:100])
        client.send(AUDIO)
        frames = client.finish()
    assert transcript(frames) == "the kite flew"
    assert len(threads) == 3, "the context, and the terms with it and without it"
    assert all(name.startswith("keyterms") for name in threads)


def test_terms_of_other_protocols_are_built_on_a_thread(server: LiveServer, threads: list[str]) -> None:
    with WireStream(server, "flux") as stream:
        stream.send({"type": "Configure", "keyterms": names("flux")})
        stream.until('"ConfigureSuccess"')
    with WireStream(server, "vosk") as stream:
        stream.send({"config": {"phrase_list": names("vosk")}})
        stream.audio(AUDIO.tobytes())
        stream.finish()
    assert "the kite flew" in stream.texts()
    with WireStream(server, "openai") as stream:
        session = {"type": "transcription", "audio": {"input": {"transcription": {"keywords": names("openai")}}}}
        stream.send({"type": "session.update", "session": session})
        stream.until(names("openai")[1])
    assert len(threads) >= 3
    assert all(name.startswith("keyterms") for name in threads)


def test_a_caller_with_ever_new_terms_is_refused_by_name_and_its_streams_go_on(server: LiveServer) -> None:
    failures: list[dict[str, Any]] = []
    for number in range(SETS):
        if failures:
            break
        with server.listen(interim_results="false") as client:
            client.say("Configure", keyterms=names(f"n{number}"))
            client.say("Configure", keyterms=["kite"])  # few characters: never refused
            client.send(AUDIO)
            frames = client.finish()
        assert transcript(frames) == "the kite flew"
        failures = [frame for frame in frames if frame["type"] == "ConfigureFailure"]
    (failure,) = failures
    assert failure["code"] == "CONFIGURE_ALREADY_PENDING"
    assert "characters of new key terms per second" in failure["description"]
