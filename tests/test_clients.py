"""The client side against a server that is known to the letter."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, aclosing
from pathlib import Path

import numpy as np
import pytest
import soundfile
from fake_listen import STEP_BYTES, STEP_S, FakeListen, Plan, text_of
from fake_recognition import FakeRecognition, Shape
from fake_replica import FakeReplica, Fate
from rich.console import Console

from clients.address import http_url, is_loopback, listen_url
from clients.audio import read_pcm
from clients.display import TerminalDisplay, growing
from clients.errors import BadMessage, BadUrl, ClosedAbnormally, Refused, Unreachable
from clients.live import connect
from clients.messages import (
    Alternative,
    Channel,
    ConfigureFailure,
    ConfigureSuccess,
    Message,
    Metadata,
    Results,
    StepTimings,
    decode,
)
from clients.outcome import Failed, Transcribed
from clients.pacing import PcmSource
from clients.retry import Retry
from clients.transcribe import run, run_remote, transcribe_files
from clients.transcriber import RemoteTranscriber, Transcriber
from clients.transcript import Transcript

WITHIN_S = 10.0  # only a failing test waits that long


def wait_for(main: Coroutine[object, object, None]) -> None:
    asyncio.run(asyncio.wait_for(main, WITHIN_S))


def noise(steps: float, seed: int = 0) -> bytes:
    """Audio of so many steps."""
    return np.random.default_rng(seed).integers(-9000, 9000, round(steps * STEP_BYTES / 2), dtype=np.int16).tobytes()


@pytest.fixture
def recordings(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"r{number}.wav" for number in range(4)]
    for number, path in enumerate(paths):
        soundfile.write(path, np.frombuffer(noise(3.5 + number, seed=number), np.int16), 16000)
    return paths


def results(text: str, *, final: bool = False, stable: int | None = None, channel: int = 0) -> Results:
    return Results(
        channel=Channel((Alternative(text),)),
        is_final=final,
        channel_index=(channel, 2),
        tutti=None if stable is None else StepTimings(stable_words=stable),
    )


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
def test_any_usual_form_of_address_leads_to_listen(given: str, expected: str) -> None:
    assert listen_url(given, {"a": 1}) == expected


@pytest.mark.parametrize("given", ["ftp://h", "ws://", "ws://h:port", "http://[::1"])
def test_an_address_that_is_none_is_refused(given: str) -> None:
    with pytest.raises(BadUrl):
        listen_url(given, {})


def test_query_values_are_written_as_the_protocol_wants_them() -> None:
    url = listen_url("h:1", {"interim_results": True, "vad": False, "keyterm": ["a b", "c"], "x": 2.5})
    assert url == "ws://h:1/v1/listen?interim_results=true&vad=false&keyterm=a+b&keyterm=c&x=2.5"
    assert http_url("ws://h:1/v1/listen?x=1", "/metrics") == "http://h:1/metrics"


def test_only_this_machine_is_loopback() -> None:
    assert all(is_loopback(url) for url in ("ws://127.0.0.1:1/", "ws://[::1]/", "ws://localhost"))
    assert not is_loopback("ws://example.com")


# Messages and transcripts


def test_unknown_types_are_skipped_and_broken_ones_are_not() -> None:
    assert decode('{"type":"Unheard","x":1}') is None
    assert decode('{"type":"ConfigureSuccess","request_id":"r","keyterms":["a b"]}') == ConfigureSuccess(("a b",))
    assert decode('{"type":"ConfigureFailure","code":"C"}') == ConfigureFailure("C")
    assert decode('{"type":"Metadata","request_id":"r","sha256":"?"}') == Metadata(request_id="r")
    for broken in ('{"type":"Results"}', "not json", "[1]", '{"start":1}'):
        with pytest.raises(BadMessage):
            decode(broken)


def test_finals_are_joined_and_other_channels_left_out() -> None:
    transcript = Transcript()
    for message in (results("one two", final=True), results("", final=True), results("x", final=True, channel=1)):
        transcript.add(message)
    transcript.add(results("three", final=True))
    assert transcript.text == "one two three"


def test_stable_words_are_the_servers_or_those_on_which_two_partials_agree() -> None:
    transcript = Transcript()
    transcript.add(results("the cat"))
    assert (transcript.stable, transcript.unstable) == ("", "the cat")
    transcript.add(results("the cart is"))
    assert (transcript.stable, transcript.unstable) == ("the", "cart is")
    transcript.add(results("the cart is here", stable=3))
    assert (transcript.stable, transcript.unstable) == ("the cart is", "here")
    transcript.add(results("the cart is here", final=True))
    assert (transcript.stable, transcript.unstable) == ("", "")


# The live client


def test_a_stream_is_opened_used_and_closed() -> None:
    async def main() -> None:
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

    wait_for(main())


def test_finalize_answers_and_leaves_the_stream_open() -> None:
    async def main() -> None:
        async with FakeListen().running() as server, connect(server.url) as client:
            await client.send(noise(2))
            await client.finalize(channel=0)
            while not (isinstance(message := await anext(client), Results) and message.from_finalize):
                pass
            await client.send(noise(1, seed=5))
            await client.close_stream()
            rest = [message async for message in client]
            assert [m.text for m in rest if isinstance(m, Results) and m.is_final] == [text_of(noise(1, seed=5))]

    wait_for(main())


def test_a_refusal_carries_status_advice_and_message() -> None:
    async def main() -> None:
        async with FakeListen(lambda _: Plan(refuse=503)).running() as server:
            with pytest.raises(Refused, match="no room") as refused:
                async with connect(server.url):
                    pass
        assert (refused.value.status, refused.value.retry_after_s) == (503, 2.0)

    wait_for(main())


def test_an_abnormal_close_is_an_error_with_its_code() -> None:
    async def main() -> None:
        async with FakeListen(lambda _: Plan(close_after=1)).running() as server, connect(server.url) as client:
            await client.send(noise(2))
            with pytest.raises(ClosedAbnormally, match="NET-0000") as closed:
                [message async for message in client]
            assert closed.value.code == 1011
            with pytest.raises(ClosedAbnormally):
                await client.send(noise(1))

    wait_for(main())


def test_a_server_that_is_not_there_is_unreachable() -> None:
    async def main() -> None:
        async with FakeListen().running() as server:
            url = server.url
        with pytest.raises(Unreachable, match=url):
            async with connect(url):
                pass

    wait_for(main())


# The transcriber


class Tape:
    """A source that remembers how far it was in front of the answers, and of real time."""

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


def test_a_file_does_not_run_far_ahead_of_the_answers() -> None:
    async def main() -> None:
        tape = Tape([noise(1, seed=number) for number in range(20)])
        async with FakeListen(lambda _: Plan(delay_s=0.01)).running() as server:
            transcriber = RemoteTranscriber(server.url, ahead_s=4 * STEP_S)
            async for message in transcriber.stream(tape):
                if isinstance(message, Results):
                    tape.answered_s = message.cursor_s
        assert 3 * STEP_S < max(tape.leads_s) < 7 * STEP_S

    wait_for(main())


def test_a_server_that_answers_nothing_is_fed_at_the_speed_of_speech() -> None:
    async def main() -> None:
        async with FakeListen(lambda _: Plan(silent=True)).running() as server:
            transcriber = RemoteTranscriber(server.url, ahead_s=2 * STEP_S)
            tape = Tape([noise(1)] * 8)
            streaming = asyncio.create_task(anext(aiter(transcriber.stream(tape))))
            assert await server.heard.get() == "CloseStream"
            assert len(server.connections[0].audio) == 8 * STEP_BYTES
            streaming.cancel()
            await asyncio.wait({streaming})

    wait_for(main())


def test_a_source_that_fails_ends_the_stream_with_its_error() -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield noise(1)
        raise LookupError("tape torn")

    async def main() -> None:
        async with FakeListen().running() as server:
            with pytest.raises(LookupError, match="tape torn"):
                [message async for message in RemoteTranscriber(server.url).stream(broken())]

    wait_for(main())


def test_a_stream_that_is_left_early_is_given_back() -> None:
    async def main() -> None:
        async with FakeListen().running() as server:
            async with aclosing(RemoteTranscriber(server.url).stream(Tape([noise(1)] * 100))) as messages:
                await anext(messages)
            assert not [task for task in asyncio.all_tasks() if "clients" in repr(task.get_coro())]
            assert await asyncio.wait_for(server.gone.get(), WITHIN_S) == 1000

    wait_for(main())


# Files


def test_files_are_transcribed_in_order_and_side_by_side(recordings: list[Path]) -> None:
    async def main() -> None:
        async with FakeListen().running() as server:
            outcomes = await transcribe_files(recordings, RemoteTranscriber(server.url), concurrency=2)
        assert [outcome.path for outcome in outcomes] == recordings
        for outcome, path in zip(outcomes, recordings, strict=True):
            assert isinstance(outcome, Transcribed)
            pcm = read_pcm(path)
            assert outcome.text == text_of(pcm.tobytes())
            assert outcome.duration_s == pytest.approx(len(pcm) / 16000)
            assert 0.0 <= outcome.final_latency_s <= outcome.elapsed_s

    wait_for(main())


def test_one_bad_file_does_not_stop_the_others(recordings: list[Path], tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeListen(lambda number: Plan(refuse=503) if number == 0 else Plan()).running() as server:
            files = [recordings[0], tmp_path / "none.wav", recordings[1]]
            outcomes = await transcribe_files(files, RemoteTranscriber(server.url), concurrency=1)
        refused, missing, good = outcomes
        assert isinstance(refused, Failed)
        assert "503" in refused.problem
        assert isinstance(missing, Failed)
        assert missing.problem == "no such file"
        assert isinstance(good, Transcribed)

    wait_for(main())


def test_real_time_messages_come_when_they_have_been_spoken() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        source = PcmSource(np.frombuffer(noise(2.5), np.int16), 16000, realtime=True)
        began_s = loop.time()
        times = [(loop.time() - began_s, len(message)) async for message in source]
        spoken_s = (STEP_S, 2 * STEP_S, 2.5 * STEP_S)
        assert [size for _, size in times] == [STEP_BYTES, STEP_BYTES, STEP_BYTES // 2]
        assert all(at_s >= due_s - 0.002 for (at_s, _), due_s in zip(times, spoken_s, strict=True))
        assert source.ended_s is not None
        assert source.ended_s - began_s >= times[-1][0]

    wait_for(main())


def test_json_lines_and_exit_codes(recordings: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    with FakeListen().in_thread() as server:
        assert run_remote(recordings[:2], url=server.url, as_json=True, concurrency=1) == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [line["type"] for line in lines] == ["final", "file"] * 2
        assert lines[1]["text"] == text_of(read_pcm(recordings[0]).tobytes())
        assert {"words", "duration_s", "real_time_factor", "final_latency_ms", "file"} <= lines[1].keys()
        assert run_remote([recordings[0].with_name("none.ogg")], url=server.url) == 1
        assert json.loads(capsys.readouterr().out)["error"] == "no such file"


def test_a_full_server_is_waited_for_and_the_user_told(
    recordings: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeListen(lambda number: Plan(refuse=503 if number == 0 else 0)).in_thread() as server:
        assert run_remote(recordings[:1], url=f"ws://127.0.0.1:9, {server.url}", as_json=True, retry_s=10.0) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out.splitlines()[-1])["text"] == text_of(read_pcm(recordings[0]).tobytes())
    assert "no room" in shown.err
    assert "next try" in shown.err


def test_a_recording_outlives_its_server(recordings: list[Path]) -> None:
    async def main() -> None:
        async with FakeReplica(lambda number: Fate(hear=20) if number < 2 else Fate()).running() as server:
            transcriber = RemoteTranscriber(server.url, resumable=True, retry=Retry(first_wait_s=0.001))
            [outcome] = await transcribe_files([recordings[3]], transcriber)
            assert server.handshakes == 1
            pcm = np.tile(read_pcm(recordings[3]), 20)
            messages = [m async for m in transcriber.stream(PcmSource(pcm, 16000, realtime=False))]
            assert server.handshakes == 3
        assert isinstance(outcome, Transcribed)
        said = " ".join(m.text for m in messages if isinstance(m, Results) and m.is_final and m.text)
        whole = FakeRecognition(Shape(rate=16000))
        wanted = [f for part in (pcm.tobytes(), '{"type":"CloseStream"}') for f in whole.hear(part)]
        texts = [f["channel"]["alternatives"][0]["transcript"] for f in wanted if f.get("is_final")]
        assert said == " ".join(text for text in texts if text)

    wait_for(main())


def test_ctrl_c_ends_the_recordings_where_they_are_and_keeps_what_was_said(tmp_path: Path) -> None:
    long, never = tmp_path / "long.wav", tmp_path / "never.wav"
    soundfile.write(long, np.frombuffer(noise(800), np.int16), 16000)
    soundfile.write(never, np.frombuffer(noise(3), np.int16), 16000)
    with FakeListen().in_thread() as server:
        code = (
            "import sys; from pathlib import Path; from clients.transcribe import run_remote;"
            f"sys.exit(run_remote([Path({str(long)!r}), Path({str(never)!r})], url={server.url!r}, realtime=True, "
            "concurrency=1))"
        )
        command = [sys.executable, "-c", code]
        with subprocess.Popen(command, cwd=Path(__file__).parent.parent, stdout=subprocess.PIPE, text=True) as process:
            while not (server.connections and len(server.connections[0].audio) > 3 * STEP_BYTES):
                time.sleep(0.02)  # another process's audio has no event here
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=WITHIN_S)
        heard = bytes(server.connections[0].audio)
    assert process.returncode == 130
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["type"] for line in lines] == ["final", "file", "error"]
    assert lines[1]["text"] == text_of(heard)
    assert lines[1]["duration_s"] == pytest.approx(len(heard) / 32_000, abs=1e-3)
    assert "interrupted" in lines[2]["error"]


def test_ctrl_c_is_exit_code_130(recordings: list[Path]) -> None:
    def interrupted() -> AbstractAsyncContextManager[Transcriber]:
        raise KeyboardInterrupt

    assert run(recordings, interrupted) == 130


def test_another_transcriber_is_shown_in_the_same_way(
    recordings: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    class InProcess:
        sample_rate = 16000

        async def stream(self, pcm: AsyncIterator[bytes]) -> AsyncIterator[Message]:
            audio = b"".join([message async for message in pcm])
            yield results(text_of(audio), final=True)

    class Opened:
        async def __aenter__(self) -> InProcess:
            return InProcess()

        async def __aexit__(self, *_: object) -> None:
            return

    opening: Callable[[], AbstractAsyncContextManager[Transcriber]] = Opened  # type: ignore[assignment]
    assert run(recordings[:1], opening) == 0
    final, closing = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert final["text"] == closing["text"] == text_of(read_pcm(recordings[0]).tobytes())


def test_unstable_words_are_dim() -> None:
    transcript = Transcript()
    transcript.add(results("we said", final=True))
    transcript.add(results("turn the lie", stable=2))
    line = growing(Path("a.wav"), transcript)
    assert line.plain == "a.wav  we said turn the lie"
    dim = [span for span in line.spans if span.style == "dim"]
    assert [line.plain[span.start : span.end] for span in dim] == [" lie"]


def test_the_terminal_shows_text_and_failures() -> None:
    out = io.StringIO()
    with TerminalDisplay(Console(file=out, force_terminal=True, width=100)) as display:
        transcript = Transcript()
        transcript.add(results("hello there"))
        display.results(Path("a.wav"), results("hello there"), transcript)
        display.done(Transcribed(Path("a.wav"), "hello there", (), 2.0, 0.1, 0.012))
        display.done(Failed(Path("b.wav"), Unreachable("ws://h", "nobody")))
    for shown in ("hello there", "final after 12 ms", "no server at ws://h"):
        assert shown in out.getvalue()


def test_clients_import_no_torch() -> None:
    code = "import sys, clients.transcribe; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent.parent, check=False).returncode == 0
