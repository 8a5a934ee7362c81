"""`tutti_asr_client.sync` on real sockets: messages, reconnecting, threads, errors, and Ctrl-C."""

from __future__ import annotations

import inspect
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import tutti_asr_client
from tests.support.clients.client_bench import noise
from tests.support.clients.fake_listen import STEP_BYTES, FakeListen, Plan, text_of
from tests.support.clients.fake_recognition import FakeRecognition, Shape
from tests.support.clients.fake_replica import FakeReplica, Faults
from tests.support.clients.in_thread import in_thread
from tutti_asr_client import ClosedAbnormally, Connected, Event, Message, Metadata, Refused, Results, Retry, Unreachable
from tutti_asr_client.sync import THREAD, ListenClient, ResilientClient, connect, open_stream

ROOT = Path(__file__).parents[2]
WITHIN_S = 20.0  # only a failing test waits that long
AT_ONCE = Retry(limit_s=5.0, first_wait_s=0.001, longest_wait_s=0.01)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert THREAD not in [thread.name for thread in threading.enumerate()]


def finals(messages: list[Message]) -> str:
    return " ".join(m.text for m in messages if isinstance(m, Results) and m.is_final and m.text)


def undisturbed(audio: bytes) -> str:
    """Return the text of a stream that is never cut."""
    server = FakeRecognition(Shape(rate=16000))
    frames = [frame for part in (audio, '{"type":"CloseStream"}') for frame in server.hear(part)]
    texts = [f["channel"]["alternatives"][0]["transcript"] for f in frames if f.get("is_final")]
    return " ".join(text for text in texts if text)


@pytest.mark.parametrize("opening", [connect, open_stream], ids=["connect", "open_stream"])
def test_a_stream_is_sent_and_iterated_over(opening: Callable[..., ResilientClient]) -> None:
    audio = noise(6.5)
    with FakeListen().in_thread() as server:
        with opening(server.url, api_key="k", keyterm=["one", "two"]) as stream:
            stream.send(audio)
            stream.keep_alive()
            stream.close_stream()
            received = list(stream)
            assert stream.receive() is None
        [seen] = server.connections
    assert bytes(seen.audio) == audio
    assert seen.query["keyterm"] == ["one", "two"]
    assert seen.headers["authorization"] == "Token k"
    assert finals(received) == text_of(audio)
    assert isinstance(received[-1], Metadata)


def test_a_cut_stream_continues_while_one_thread_sends_and_another_iterates() -> None:
    events: list[Event] = []
    audio = noise(60)
    faults = (Faults(hear=12), Faults(refuse=503), Faults(hear=9))
    server = FakeReplica(lambda number: faults[number] if number < len(faults) else Faults())
    with in_thread(server.running()), ThreadPoolExecutor(1) as pool:  # noqa: SIM117 - they have to outlive it
        with open_stream(server.url, resumable=True, retry=AT_ONCE, on_event=events.append) as stream:

            def say() -> None:
                for first in range(0, len(audio), STEP_BYTES):
                    stream.send(audio[first : first + STEP_BYTES])
                stream.close_stream()

            saying = pool.submit(say)
            received = list(stream)
            saying.result(WITHIN_S)
            assert stream.events.reconnects == 2
    assert finals(received) == undisturbed(audio)
    assert sum(isinstance(event, Connected) for event in events) == 3


def test_a_message_that_was_awaited_too_long_comes_later() -> None:
    with FakeListen().in_thread() as server, open_stream(server.url) as stream:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                stream.receive(timeout_s=0.01)
        stream.send(noise(2))
        ends = [
            message.cursor_s for message in (stream.receive(WITHIN_S), next(stream)) if isinstance(message, Results)
        ]
        assert ends == pytest.approx([0.08, 0.16])


def test_errors_are_those_of_the_asynchronous_client() -> None:
    with pytest.raises(Unreachable, match=r"no server at ws://127\.0\.0\.1:9"), open_stream("ws://127.0.0.1:9"):
        pass
    with pytest.raises(ValueError, match="ogg-opus"), open_stream("ws://127.0.0.1:9", encoding="ogg-opus"):
        pass
    with FakeListen(lambda _: Plan(refuse=401)).in_thread() as server:  # noqa: SIM117 - the server has to outlive it
        with pytest.raises(Refused, match="no room"), connect(server.url):
            pass
    with FakeListen(lambda _: Plan(close_after=1)).in_thread() as server, connect(server.url) as stream:
        stream.send(noise(3))
        with pytest.raises(ClosedAbnormally, match="stall"):
            list(stream)


@pytest.mark.parametrize("opening", [connect, open_stream], ids=["connect", "open_stream"])
def test_leaving_the_block_ends_a_thread_that_iterates(opening: Callable[..., ResilientClient]) -> None:
    with FakeListen().in_thread() as server, ThreadPoolExecutor(1) as pool:
        with opening(server.url) as stream:
            stream.send(noise(1))
            first = next(stream)
            waiting = pool.submit(lambda: list(stream))
        assert isinstance(first, Results)
        assert isinstance(waiting.exception(WITHIN_S), ClosedAbnormally) or waiting.result() == []
        with pytest.raises(ClosedAbnormally, match="`with` block has ended"):
            stream.send(noise(1))


def test_a_call_from_on_event_is_an_error_instead_of_a_deadlock() -> None:
    problems: list[str] = []
    opened: list[ResilientClient] = []

    def react(_: Event) -> None:
        for stream in opened:
            try:
                stream.finalize()
            except RuntimeError as error:
                problems.append(str(error))

    server = FakeReplica(lambda number: Faults(hear=3) if number == 0 else Faults())
    with in_thread(server.running()), open_stream(server.url, retry=AT_ONCE, on_event=react) as stream:
        opened.append(stream)
        for _ in range(6):
            stream.send(noise(1))
        stream.close_stream()
        list(stream)
    assert problems
    assert "event loop thread" in problems[0]


CALLED = {"send", "finalize", "configure", "add_context", "rewind", "keep_alive", "close_stream", "abort"}


@pytest.mark.parametrize(
    ("blocking", "other"),
    [(ListenClient, tutti_asr_client.ListenClient), (ResilientClient, tutti_asr_client.ResilientClient)],
)
def test_both_forms_have_the_same_arguments(blocking: type, other: type) -> None:
    for name in CALLED:
        assert list(inspect.signature(getattr(blocking, name)).parameters) == list(
            inspect.signature(getattr(other, name)).parameters
        )
    for here, there in ((connect, tutti_asr_client.connect), (open_stream, tutti_asr_client.open_stream)):
        assert inspect.signature(here).parameters == inspect.signature(there).parameters


INTERRUPTED = """
import sys
from tutti_asr_client import Results
from tutti_asr_client.sync import open_stream

with open_stream(sys.argv[1], interim_results=False) as stream:
    stream.send(b"\\1\\2" * 64_000)
    print("sent", flush=True)
    try:
        for message in stream:
            pass
    except KeyboardInterrupt:
        if sys.argv[2] == "leave":
            raise
        stream.close_stream()
        print([message.text for message in stream if isinstance(message, Results) and message.is_final][0])
"""


@pytest.mark.parametrize("then", ["leave", "finish"])
def test_ctrl_c_leaves_a_stream_or_lets_it_finish(then: str) -> None:
    with FakeListen().in_thread() as server:
        words = [sys.executable, "-c", INTERRUPTED, server.url, then]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(words, cwd=ROOT, text=True, **pipes) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "sent\n"
            while len(server.connections[0].audio) < 128_000:
                time.sleep(0.01)  # another process's audio has no event here
            interrupted_s = time.monotonic()
            process.send_signal(signal.SIGINT)
            out, errors = process.communicate(timeout=WITHIN_S)
            took_s = time.monotonic() - interrupted_s
        gone = server.gone.get_nowait()
    assert gone == 1000
    assert took_s < 5.0
    if then == "leave":
        assert process.returncode == -signal.SIGINT
        assert errors.rstrip().endswith("KeyboardInterrupt")
        assert errors.count("Traceback") == 1, errors
    else:
        assert (process.returncode, errors) == (0, "")
        assert out.strip() == text_of(b"\1\2" * 64_000)
