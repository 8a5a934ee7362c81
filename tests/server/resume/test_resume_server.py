"""Streams over two servers with the same key: cut anywhere, they give the results of one unbroken connection."""

from __future__ import annotations

import base64
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from model.ctc.beam import BeamDecoder
from server.models import service_builder
from server.protocols.deepgram import resumable
from server.recognition.steps import Auxiliary
from server.resume.tickets import new_key
from tests.support.clients.resume_client import Received, ResumingClient
from tests.support.servers.live_server import Client, LiveServer, transcript
from tests.support.servers.recognizers.level_vad import LevelVad
from tests.support.servers.recognizers.spelling import CONFIG, SpellingModel, silence, spell

KEY, OTHER_KEY = new_key(), new_key()
TEXTS = ("hello there this is one", "and here is two", "now a third sentence of some length", "end")
Start = Callable[..., LiveServer]


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[LiveServer, LiveServer]]:
    with ExitStack() as stack:
        yield (stack.enter_context(LiveServer(resume_keys=(KEY,))), stack.enter_context(LiveServer(resume_keys=(KEY,))))


def speech(rate: int = CONFIG.sample_rate, texts: tuple[str, ...] = TEXTS) -> np.ndarray:
    return np.concatenate([part for text in texts for part in (spell(text, rate), silence(0.9, rate))])


def unbroken(server: LiveServer, audio: np.ndarray, rate: int, **query: Any) -> Received:
    received = ResumingClient([server], audio, rate, **query).run(())
    assert received.tickets >= 5
    assert sum(bool(final["channel"]["alternatives"][0]["words"]) for final in received.finals) >= 3
    return received


def check(
    pair: tuple[LiveServer, LiveServer], audio: np.ndarray, rate: int, losses: list[float], **query: Any
) -> tuple[Received, Received]:
    whole = unbroken(pair[0], audio, rate, **query)
    moved = ResumingClient(pair, audio, rate, **query).run(losses)
    assert moved.results == whole.results
    assert moved.others[-1]["duration"] == whole.others[-1]["duration"]
    return moved, whole


@pytest.mark.parametrize("seed", range(6))
def test_stream_cut_anywhere_has_the_finals_of_an_unbroken_one(pair: Any, seed: int) -> None:
    audio = speech()
    dice = random.Random(seed)
    losses = sorted(dice.uniform(0, len(audio) / 16_000) for _ in range(dice.randint(1, 5)))
    query = {"interim_results": "true", "vad_events": "true", "utterance_end_ms": "800"}
    moved, whole = check(pair, audio[:, None], 16_000, losses, **query)
    assert moved.events == whole.events
    ends = [frame["start"] + frame["duration"] for frame in moved.interims]
    assert ends == sorted(ends), "the end of interims never moves back"


def test_formatted_sentences_continue_after_a_resume(pair: Any) -> None:
    """Sentences cut at the length limit are capitalized once."""
    text = "this is a text without any pause and it runs on and on until the server has to cut it twenty one times"
    audio = np.concatenate([spell(text), silence(1.0), spell("is it over"), silence(1.0), spell("yes"), silence(1)])
    with ExitStack() as stack:
        short = [stack.enter_context(LiveServer(resume_keys=(KEY,), max_utterance_s=2.0)) for _ in range(2)]
        check((short[0], short[1]), audio[:, None], 16_000, [1.9, 3.3, 5.2, 6.1], smart_format="true")


@pytest.mark.parametrize("rate", [8_000, 44_100, 48_000])
def test_resampled_audio_resumes_at_the_exact_sample(pair: Any, rate: int) -> None:
    check(pair, speech(rate)[:, None], rate, [1.7, 3.9, 4.0, 8.2])


def test_mulaw_audio_resumes(pair: Any) -> None:
    """One byte per sample: the spelling model's levels survive the quantization only for loud letters."""
    audio = np.where(speech(8_000) > 0, 0x80, 0xFF).astype(np.uint8)  # full scale or silence: the letter z, capped
    check(pair, audio[:, None], 8_000, [1.2, 2.5, 7.7], encoding="mulaw")


@pytest.mark.parametrize("rate", [16_000, 8_000])
def test_two_channels_resume_together(pair: Any, rate: int) -> None:
    left, right = speech(rate), speech(rate, ("quite another thing", "is said over here", "at the same time"))
    audio = np.zeros((max(len(left), len(right)), 2), np.int16)
    audio[: len(left), 0], audio[: len(right), 1] = left, right
    moved, _ = check(pair, audio, rate, [1.1, 2.9, 6.0], multichannel="true")
    assert {final["channel_index"][0] for final in moved.finals} == {0, 1}


def test_mixed_down_channels_resume(pair: Any) -> None:
    check(pair, np.stack([speech(), speech()], axis=1), 16_000, [2.2, 5.5])


def test_beam_search_resumes_with_its_key_terms() -> None:
    decoders = [BeamDecoder(CONFIG.vocabulary, CONFIG.frame_s, beams=16) for _ in range(2)]
    with ExitStack() as stack:
        servers = [stack.enter_context(LiveServer(decoder=one, resume_keys=(KEY,))) for one in decoders]
        check((servers[0], servers[1]), speech()[:, None], 16_000, [1.0, 2.0, 4.4, 7.1], keyterm="third sentence")


def test_many_streams_resume_under_load_without_affecting_each_other(pair: Any) -> None:
    """Each stream has its own words, is batched with all others, and moves at its own times."""

    def one(number: int) -> bool:
        text = (f"{'abcdefghij'[number % 10] * 3} here speaks number", "x" + "abcdefghij"[number // 10] * 2, *TEXTS[:2])
        audio = speech(texts=text)[:, None]
        dice = random.Random(number)
        losses = sorted(dice.uniform(0.2, len(audio) / 16_000) for _ in range(3))
        servers = pair if number % 2 else pair[::-1]
        moved = ResumingClient(servers, audio, 16_000).run(losses)
        return moved.results == ResumingClient([pair[0]], audio, 16_000).run(()).results

    with ThreadPoolExecutor(20) as clients:
        assert all(clients.map(one, range(20)))


# Refusals


def some_ticket(server: LiveServer, headers: dict[str, str] | None = None, **query: Any) -> tuple[str, list[Any]]:
    """Return a ticket and the finals before it."""
    with server.listen(headers, resumable="true", **query) as client:
        client.send(np.concatenate([spell("before"), silence(1.0), spell("after"), silence(0.6)]))
        frames = client.until(lambda frame: frame["type"] == "Ticket" and frame["finals"] >= 1)
    return frames[-1]["ticket"], [frame for frame in frames if frame["type"] == "Results"]


def refused(client: Client, ticket: str) -> str:
    client.say("Resume", ticket=ticket, finals=1, cursor_s=1.0)
    answer = client.receive()
    assert (answer["type"], bool(answer["description"])) == ("ResumeRefused", True)
    return str(answer["code"])


def bent(ticket: str) -> str:
    sealed = bytearray(base64.urlsafe_b64decode(ticket + "=" * (-len(ticket) % 4)))
    sealed[len(sealed) // 2] ^= 1
    return base64.urlsafe_b64encode(bytes(sealed)).rstrip(b"=").decode()


def test_stream_with_a_refused_ticket_can_start_at_a_given_time(pair: Any) -> None:
    ticket, before = some_ticket(pair[0])
    final = before[0]
    ended_s = final["start"] + final["duration"]
    with pair[1].listen(resumable="true") as client:
        assert refused(client, bent(ticket)) == "TICKET_FORGED"
        client.say("Resume", from_s=ended_s, finals=1)
        assert client.receive()["audio_s"] == ended_s
        audio = np.concatenate([spell("before"), silence(1.0), spell("after"), silence(1.6)])
        client.send(audio[round(ended_s * 16_000) :])
        frames = client.finish()
    assert transcript(frames) == "after"
    said = [frame for frame in frames if frame["type"] == "Results"]
    assert said[0]["start"] == ended_s
    assert frames[-1]["duration"] == pytest.approx(len(audio) / 16_000)
    tickets = [frame["finals"] for frame in frames if frame["type"] == "Ticket"]
    assert tickets
    assert tickets[0] >= 1, "finals are counted from the first connection on"


class OtherPrecision(SpellingModel):
    """The same weights in another precision: its states are incompatible."""

    precision = "int8"


class OtherWeights(SpellingModel):
    """Another checkpoint."""

    digest = "01spelling"


@pytest.mark.parametrize(
    ("code", "other"),
    [
        ("TICKET_FORGED", {"resume_keys": (OTHER_KEY,)}),
        ("TICKET_FORGED", {}),
        ("TICKET_MODEL", {"resume_keys": (KEY,), "model": OtherPrecision()}),
        ("TICKET_MODEL", {"resume_keys": (KEY,), "model": OtherWeights()}),
        ("TICKET_MODEL", {"resume_keys": (KEY,), "min_endpoint_ms": 500}),
        ("TICKET_MODEL", {"resume_keys": (KEY,), "vad": "off"}),
        ("TICKET_MODEL", {"resume_keys": (KEY,), "decoder": BeamDecoder(CONFIG.vocabulary, CONFIG.frame_s, beams=2)}),
    ],
)
def test_servers_with_other_models_keys_or_versions_refuse_a_ticket(
    pair: Any, live_server: Start, code: str, other: Any
) -> None:
    ticket, _ = some_ticket(pair[0])
    with live_server(**other).listen(resumable="true") as client:
        assert refused(client, ticket) == code


def test_tickets_belong_to_a_key_and_a_query(live_server: Start) -> None:
    server = live_server(resume_keys=(KEY,), api_keys=("mine", "yours"))
    mine, yours = ({"Authorization": f"Token {key}"} for key in ("mine", "yours"))
    ticket, _ = some_ticket(server, mine)
    for headers, query in ((yours, {}), (mine, {"interim_results": "true"})):
        with server.listen(headers, resumable="true", **query) as client:
            assert refused(client, ticket) == "TICKET_TENANT"
    with server.listen(mine, resumable="true") as client:
        client.say("Resume", ticket=ticket, finals=1)
        assert client.receive()["type"] == "Resumed"


def test_used_ticket_is_refused_and_resuming_gives_a_new_one_at_once(pair: Any) -> None:
    before = pair[1].metric('tutti_resumes_total{outcome="resumed"}')
    ticket, _ = some_ticket(pair[0])
    assert pair[0].metric("tutti_resume_tickets_total") > 0
    for _ in range(2):  # the ticket stays valid until audio is received
        with pair[1].listen(resumable="true") as client:
            client.say("Resume", ticket=ticket, finals=1)
            assert client.receive()["type"] == "Resumed"
            fresh = client.receive()
            assert fresh["type"] == "Ticket"
            client.vanish()
    with pair[1].listen(resumable="true") as client:
        client.say("Resume", ticket=ticket, finals=1)
        client.receive()
        client.send(silence(1.5))
        client.until(lambda frame: frame["type"] == "Ticket" and frame["ticket"] != fresh["ticket"])
        client.vanish()
    with pair[1].listen(resumable="true") as client:
        assert refused(client, ticket) == "TICKET_REPLAYED"
    with pair[1].listen(resumable="true") as client:
        client.say("Resume", ticket=fresh["ticket"], finals=1)
        assert client.receive()["type"] == "Resumed"
    assert pair[1].metric('tutti_resumes_total{outcome="resumed"}') == before + 4


@pytest.mark.parametrize("rate", [16_000, 8_000])
@pytest.mark.parametrize("vad", ["auto", "silero"])
def test_streams_with_a_voice_activity_model_resume(vad: str, rate: int) -> None:
    """A hum between the words has no letter: starts of speech and, with `silero`, endpoints depend on its windows."""
    hum = np.full(rate // 2, 100, np.int16)
    audio = np.concatenate([part for text in TEXTS for part in (hum, spell(text, rate), hum, silence(1.3, rate))])
    query = {"vad_events": "true", "utterance_end_ms": "800"}
    with ExitStack() as stack:
        one, two = (
            stack.enter_context(
                LiveServer(resume_keys=(KEY,), auxiliary={Auxiliary.VAD: LevelVad(trails=True)}, vad=vad)
            )
            for _ in range(2)
        )
        moved, whole = check((one, two), audio[:, None], rate, [0.7, 2.33, 4.1, 6.91, 8.8], **query)
    assert moved.events == whole.events
    assert [e["type"] for e in whole.events].count("SpeechStarted") >= len(TEXTS)


def test_steps_after_a_ticket_do_not_wait_once_both_states_are_there(live_server: Start) -> None:
    """All audio at once, then the end: the last event of the voice-activity engine is its state."""
    server = live_server(resume_keys=(KEY,), auxiliary={Auxiliary.VAD: LevelVad(trails=True)})
    for _ in range(5):
        with server.listen(resumable="true", vad_events="true") as client:
            client.send(np.concatenate([spell("text"), silence(2)]))
            frames = client.finish()
        assert transcript(frames) == "text"
        assert [frame for frame in frames if frame["type"] == "Ticket"]


# The wire


def test_only_resumable_streams_get_tickets(pair: Any) -> None:
    with pair[0].listen() as client:
        client.say("Resume", from_s=1, finals=0)
        assert client.receive()["type"] == "Error"
        client.send(speech())
        assert not [frame for frame in client.finish() if frame["type"] == "Ticket"]


def test_large_tickets_come_less_often(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def between(messages: int) -> tuple[int, float]:
        """Return the bytes of a ticket and the audio up to the next one, of which this many messages are sent."""
        with pair[0].listen(resumable="true") as client:
            tickets = []
            for count in (1, messages):
                for _ in range(count):
                    client.send(silence(1.04))
                tickets += client.until(lambda frame: frame["type"] == "Ticket")[-1:]
            client.finish()
        return len(tickets[0]["ticket"]), tickets[1]["audio_s"] - tickets[0]["audio_s"]

    size, usual_s = between(1)
    monkeypatch.setattr(resumable, "BYTES_A_SECOND", size / 3.5)
    assert usual_s == pytest.approx(1.04)
    assert between(6)[1] >= 4 * 1.04


def test_late_or_malformed_resume_frames_are_refused(pair: Any) -> None:
    with pair[0].listen(resumable="true") as client:
        for fields in ({}, {"from_s": -1}, {"from_s": 1, "ticket": "x"}, {"from_s": "x"}, {"ticket": 1}, {"finals": 1}):
            client.say("Resume", **fields)
            assert client.receive()["type"] == "Error"
        client.say("Resume", ticket="x" * 500_000)
        assert client.receive()["code"] in ("TICKET_MALFORMED", "TICKET_VERSION")
        client.say("KeepAlive")
        client.say("Resume", from_s=0.5, finals=0)
        assert client.receive()["type"] == "Resumed"
        client.say("Resume", from_s=0.5, finals=0)
        assert client.receive()["type"] == "Error"
        client.send(spell("still here"))
        assert transcript(client.finish()) == "still here"


def test_drain_sends_resumable_streams_to_another_replica_at_once(live_server: Start) -> None:
    """They get a last ticket, then 1012 without a final, and continue elsewhere. Plain streams stay."""
    first = live_server(resume_keys=(KEY,), drain_timeout_s=30.0)
    second = live_server(resume_keys=(KEY,))
    audio = np.concatenate([spell("one sentence over two servers"), silence(1.0)])
    half = 20_000 // 1_280 * 1_280
    with first.listen() as plain, first.listen(resumable="true") as client:
        plain.send(audio)
        client.send(audio[:half])
        first.wait_until(lambda: first.replica.models.slots_used == 2)
        first.server._loop.call_soon_threadsafe(first.replica.drain.begin)
        frames, code, _ = client.rest()
        assert (code, frames[-1]["type"]) == (1012, "Ticket")
        assert not [frame for frame in frames if frame["type"] == "Results"]
        ticket = frames[-1]
        assert ticket["audio_s"] == half / 16_000, "it covers all audio sent"
        assert transcript(plain.finish()) == "one sentence over two servers"
    with second.listen(resumable="true") as client:
        client.say("Resume", ticket=ticket["ticket"], finals=0)
        assert client.receive()["type"] == "Resumed"
        client.send(audio[half:])
        assert transcript(client.finish()) == "one sentence over two servers"


def test_stream_kept_alive_without_audio_gets_a_new_ticket_before_its_last_one_expires(
    live_server: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_builder, "TICKET_TTL_S", 1e-6)
    server = live_server(resume_keys=(KEY,))
    with server.listen(resumable="true") as client:
        client.say("KeepAlive")
        first = client.receive()
        client.say("KeepAlive")
        assert (first["type"], first["audio_s"]) == ("Ticket", 0)
        assert client.receive()["ticket"] != first["ticket"]


def test_age_of_a_ticket_is_measured_by_the_wall_clock(pair: Any, live_server: Start) -> None:
    """Replicas share the wall clock; a monotonic clock starts anew on each machine."""
    ticket, _ = some_ticket(pair[0])
    server = live_server(resume_keys=(KEY,), clock=lambda: time.perf_counter() + 1e6)
    with server.listen(resumable="true") as client:
        client.say("Resume", ticket=ticket, finals=1)
        assert client.receive()["type"] == "Resumed"
