"""Addresses, messages, transcripts and one live connection of the client, against `FakeListen`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import numpy as np
import pytest

from tests.support.clients.client_bench import WITHIN_S, client_tasks, noise, results
from tests.support.clients.fake_listen import STEP_BYTES, STEP_S, FakeListen, Plan, text_of
from tutti_asr_client.address import http_url, is_loopback, listen_url
from tutti_asr_client.errors import BadMessage, BadUrl, ClosedAbnormally, Refused, Unreachable
from tutti_asr_client.files.transcriber import RemoteTranscriber
from tutti_asr_client.live import connect
from tutti_asr_client.messages import (
    Alternative,
    Channel,
    ConfigureFailure,
    ConfigureSuccess,
    ContextSuccess,
    Metadata,
    Results,
    RewindFailure,
    StepTimings,
    Word,
    decode,
    joined,
)
from tutti_asr_client.transcript import Transcript

# Addresses


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("localhost:8080", "ws://localhost:8080/v1/listen?a=1"),
        ("ws://h:1", "ws://h:1/v1/listen?a=1"),
        ("http://h:1/", "ws://h:1/v1/listen?a=1"),
        ("https://h/v1/listen", "wss://h/v1/listen?a=1"),
        ("wss://h/speech/v1/listen/?a=0&b=x+y", "wss://h/speech/v1/listen?b=x+y&a=1"),
        ("ws://[::1]:9/", "ws://[::1]:9/v1/listen?a=1"),
    ],
)
def test_host_port_and_http_and_ws_urls_all_become_the_listen_url(given: str, expected: str) -> None:
    assert listen_url(given, {"a": 1}) == expected


@pytest.mark.parametrize("given", ["ftp://h", "ws://", "ws://h:port", "http://[::1"])
def test_a_malformed_address_raises_bad_url(given: str) -> None:
    with pytest.raises(BadUrl):
        listen_url(given, {})


def test_query_values_are_written_in_the_protocols_form() -> None:
    url = listen_url("h:1", {"interim_results": True, "vad": False, "keyterm": ["a b", "c"], "x": 2.5})
    assert url == "ws://h:1/v1/listen?interim_results=true&vad=false&keyterm=a+b&keyterm=c&x=2.5"
    assert http_url("ws://h:1/v1/listen?x=1", "/metrics") == "http://h:1/metrics"


def test_only_this_machine_is_loopback() -> None:
    assert all(is_loopback(url) for url in ("ws://127.0.0.1:1/", "ws://[::1]/", "ws://localhost"))
    assert not is_loopback("ws://example.com")


# Messages and transcripts


def test_messages_of_unknown_type_are_skipped_and_malformed_ones_raise() -> None:
    assert decode('{"type":"Unheard","x":1}') is None
    assert decode('{"type":"RewindFailure","request_id":"r","code":"c","description":"d"}') == RewindFailure("c", "d")
    assert decode('{"type":"ContextSuccess","request_id":"r","keyterms":["a"]}') == ContextSuccess(("a",))
    assert decode('{"type":"ConfigureSuccess","request_id":"r","keyterms":["a b"]}') == ConfigureSuccess(("a b",))
    assert decode('{"type":"ConfigureFailure","code":"C"}') == ConfigureFailure("C")
    assert decode('{"type":"Metadata","request_id":"r","sha256":"?"}') == Metadata(request_id="r")
    for broken in ('{"type":"Results"}', "not json", "[1]", '{"start":1}'):
        with pytest.raises(BadMessage):
            decode(broken)


def test_a_transcript_joins_only_the_finals_of_its_channel() -> None:
    transcript = Transcript()
    for message in (results("one two", final=True), results("", final=True), results("x", final=True, channel=1)):
        transcript.add(message)
    transcript.add(results("three", final=True))
    assert transcript.text == "one two three"


def test_a_correction_replaces_the_words_from_its_start_on() -> None:
    def said(start: float, text: str, *, corrects: bool = False) -> Results:
        words = tuple(Word(word, start + at, start + at + 0.8) for at, word in enumerate(text.split()))
        return Results(
            Channel((Alternative(text, words=words),)), start, len(words), is_final=True, correction=corrects
        )

    transcript = Transcript()
    for message in (said(0.0, "one too"), said(2.0, "tree four"), said(4.0, "five")):
        transcript.add(message)
    transcript.add(said(1.0, "two three four five", corrects=True))
    assert transcript.text == "one two three four five"
    assert [word.start for word in transcript.words] == [0.0, 1.0, 2.0, 3.0, 4.0]
    transcript.add(said(5.0, "six"))
    transcript.add(said(5.0, "", corrects=True))
    assert transcript.text == "one two three four five"


def test_stable_words_are_the_servers_count_or_common_to_two_partials() -> None:
    transcript = Transcript()
    transcript.add(results("the cat"))
    assert (transcript.stable, transcript.unstable) == ("", "the cat")
    transcript.add(results("the cart is"))
    assert (transcript.stable, transcript.unstable) == ("the", "cart is")
    transcript.add(results("the cart is here", stable=3))
    assert (transcript.stable, transcript.unstable) == ("the cart is", "here")
    transcript.add(results("the cart is here", final=True))
    assert (transcript.stable, transcript.unstable) == ("", "")


def test_chinese_is_written_without_spaces() -> None:
    def results_of(text: str, *, final: bool, stable: int) -> Results:
        words = tuple(Word(word=character, start=0.0, end=0.0, confidence=1.0) for character in text)
        channel = Channel((Alternative(text, words=words),))
        return Results(channel=channel, is_final=final, tutti=StepTimings(stable_words=stable))

    transcript = Transcript()
    transcript.add(results_of("打开", final=True, stable=0))
    transcript.add(results_of("空调一", final=False, stable=2))
    assert (transcript.text, transcript.stable, transcript.unstable) == ("打开", "空调", "一")
    transcript.add(results_of("空调", final=True, stable=0))
    assert transcript.text == "打开空调"
    assert joined(["ok", "打", "开", "it", "is"]) == "ok 打开 it is"


# The live client


async def test_a_stream_is_opened_used_and_closed() -> None:
    pcm = noise(3.5)
    async with FakeListen().running() as server:
        async with connect(server.url, api_key="k", interim_results=False, tag=["a", "b"]) as client:
            await client.keep_alive()
            await client.send(pcm[:1000])
            await client.send(np.frombuffer(pcm[1000:], np.int16))
            await client.close_stream()
            got = [message async for message in client]
        [seen] = server.connections
        assert seen.query == {
            "encoding": ["linear16"],
            "sample_rate": ["16000"],
            "interim_results": ["false"],
            "tag": ["a", "b"],
        }
        assert seen.headers["authorization"] == "Token k"
        assert bytes(seen.audio) == pcm
        assert seen.controls == ["KeepAlive", "CloseStream"]
    *partials, final, metadata = got
    assert [type(message) for message in partials] == [Results] * 3
    assert isinstance(final, Results)
    assert (final.is_final, final.text) == (True, text_of(pcm))
    assert final.cursor_s == pytest.approx(3.5 * STEP_S)
    assert [word.word for word in final.words] == text_of(pcm).split()
    assert isinstance(metadata, Metadata)


async def test_finalize_answers_and_leaves_the_stream_open() -> None:
    async with FakeListen().running() as server, connect(server.url) as client:
        await client.send(noise(2))
        await client.finalize(channel=0)
        while not (isinstance(message := await anext(client), Results) and message.from_finalize):
            pass
        await client.send(noise(1, seed=5))
        await client.close_stream()
        rest = [message async for message in client]
        assert [m.text for m in rest if isinstance(m, Results) and m.is_final] == [text_of(noise(1, seed=5))]


async def test_a_refused_handshake_carries_status_retry_after_and_message() -> None:
    async with FakeListen(lambda _: Plan(refuse=503)).running() as server:
        with pytest.raises(Refused, match="no room") as refused:
            async with connect(server.url):
                pass
    assert (refused.value.status, refused.value.retry_after_s) == (503, 2.0)


async def test_an_abnormal_close_is_an_error_with_its_code() -> None:
    async with FakeListen(lambda _: Plan(close_after=1)).running() as server, connect(server.url) as client:
        await client.send(noise(2))
        with pytest.raises(ClosedAbnormally, match="NET-0000") as closed:
            [message async for message in client]
        assert closed.value.code == 1011
        with pytest.raises(ClosedAbnormally):
            await client.send(noise(1))


async def test_no_server_at_the_address_raises_unreachable() -> None:
    async with FakeListen().running() as server:
        url = server.url
    with pytest.raises(Unreachable, match=url):
        async with connect(url):
            pass


# The transcriber


class Tape:
    """Audio source that records how far it is ahead of the answers and of real time."""

    def __init__(self, messages: list[bytes]) -> None:
        self.messages = messages
        self.answered_s = 0.0
        self.leads_s: list[float] = []

    async def __aiter__(self) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        for number, message in enumerate(self.messages):
            taken_s = number * STEP_S
            self.leads_s.append(taken_s - max(self.answered_s, loop.time() - began_s))
            yield message


async def test_a_file_is_sent_at_most_two_seconds_ahead_of_the_answers() -> None:
    tape = Tape([noise(1, seed=number) for number in range(20)])
    async with FakeListen(lambda _: Plan(delay_s=0.01)).running() as server:
        transcriber = RemoteTranscriber(server.url, ahead_s=4 * STEP_S)
        async for message in transcriber.stream(tape):
            if isinstance(message, Results):
                tape.answered_s = message.cursor_s
    assert 3 * STEP_S < max(tape.leads_s) < 7 * STEP_S


async def test_audio_is_sent_in_real_time_to_a_server_that_does_not_answer_steps() -> None:
    async with FakeListen(lambda _: Plan(silent=True)).running() as server:
        transcriber = RemoteTranscriber(server.url, ahead_s=2 * STEP_S)
        tape = Tape([noise(1)] * 8)
        streaming = asyncio.create_task(anext(aiter(transcriber.stream(tape))))
        assert await server.received.get() == "CloseStream"
        assert len(server.connections[0].audio) == 8 * STEP_BYTES
        streaming.cancel()
        await asyncio.wait({streaming})


async def test_a_source_that_fails_ends_the_stream_with_its_error() -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield noise(1)
        raise LookupError("tape torn")

    async with FakeListen().running() as server:
        with pytest.raises(LookupError, match="tape torn"):
            [message async for message in RemoteTranscriber(server.url).stream(broken())]


async def test_closing_a_transcription_early_ends_its_connection_and_tasks() -> None:
    async with FakeListen().running() as server:
        async with aclosing(RemoteTranscriber(server.url).stream(Tape([noise(1)] * 100))) as messages:
            await anext(messages)
        assert not client_tasks()
        assert await asyncio.wait_for(server.gone.get(), WITHIN_S) == 1000
