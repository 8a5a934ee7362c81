"""Transcribing files, JSON lines, exit codes and the terminal display, against `FakeListen`."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path

import numpy as np
import pytest
import soundfile
from rich.console import Console

from tests.support.clients.client_bench import WITHIN_S, noise, results
from tests.support.clients.fake_listen import STEP_BYTES, STEP_S, FakeListen, Plan, text_of
from tutti_asr_client.errors import Unreachable
from tutti_asr_client.files.audio import read_pcm
from tutti_asr_client.files.display import JsonLines, TerminalDisplay, growing
from tutti_asr_client.files.file_result import Failed, Transcribed
from tutti_asr_client.files.pacing import PcmSource
from tutti_asr_client.files.transcribe import remote, run, transcribe_files
from tutti_asr_client.files.transcriber import RemoteTranscriber, Transcriber
from tutti_asr_client.messages import Message
from tutti_asr_client.transcript import Transcript


@pytest.fixture
def recordings(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"r{number}.wav" for number in range(4)]
    for number, path in enumerate(paths):
        soundfile.write(path, np.frombuffer(noise(3.5 + number, seed=number), np.int16), 16000)
    return paths


async def test_files_are_transcribed_in_order_and_concurrently(recordings: list[Path]) -> None:
    async with FakeListen().running() as server:
        file_results = await transcribe_files(recordings, RemoteTranscriber(server.url), concurrency=2)
    assert [result.path for result in file_results] == recordings
    for result, path in zip(file_results, recordings, strict=True):
        assert isinstance(result, Transcribed)
        pcm = read_pcm(path)
        assert result.text == text_of(pcm.tobytes())
        assert result.duration_s == pytest.approx(len(pcm) / 16000)
        assert 0.0 <= result.final_latency_s <= result.elapsed_s


async def test_one_bad_file_does_not_stop_the_others(recordings: list[Path], tmp_path: Path) -> None:
    async with FakeListen(lambda number: Plan(refuse=503) if number == 0 else Plan()).running() as server:
        files = [recordings[0], tmp_path / "none.wav", recordings[1]]
        file_results = await transcribe_files(files, RemoteTranscriber(server.url), concurrency=1)
    refused, missing, good = file_results
    assert isinstance(refused, Failed)
    assert "503" in refused.problem
    assert isinstance(missing, Failed)
    assert missing.problem == "no such file"
    assert isinstance(good, Transcribed)


async def test_real_time_messages_are_sent_at_the_time_of_their_last_sample() -> None:
    loop = asyncio.get_running_loop()
    source = PcmSource(np.frombuffer(noise(2.5), np.int16), 16000, realtime=True)
    began_s = loop.time()
    times = [(loop.time() - began_s, len(message)) async for message in source]
    spoken_s = (STEP_S, 2 * STEP_S, 2.5 * STEP_S)
    assert [size for _, size in times] == [STEP_BYTES, STEP_BYTES, STEP_BYTES // 2]
    assert all(at_s >= due_s - 0.002 for (at_s, _), due_s in zip(times, spoken_s, strict=True))
    assert source.ended_s is not None
    assert source.ended_s - began_s >= times[-1][0]


def printed_as_lines(files: list[Path], url: str, retry_s: float = 0.0) -> int:
    """Transcribe on a server, one file after another, and print JSON lines; return the exit code."""
    return run(files, lambda: nullcontext(remote(url, retry_s=retry_s)), JsonLines(), concurrency=1)


def test_json_lines_and_exit_codes(recordings: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    with FakeListen().in_thread() as server:
        assert printed_as_lines(recordings[:2], server.url) == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [line["type"] for line in lines] == ["final", "file"] * 2
        assert lines[1]["text"] == text_of(read_pcm(recordings[0]).tobytes())
        assert {"words", "duration_s", "real_time_factor", "final_latency_ms", "file"} <= lines[1].keys()
        assert printed_as_lines([recordings[0].with_name("none.ogg")], server.url) == 1
        assert json.loads(capsys.readouterr().out)["error"] == "no such file"


def test_transcribe_retries_a_full_server_and_reports_it(
    recordings: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeListen(lambda number: Plan(refuse=503 if number == 0 else 0)).in_thread() as server:
        assert printed_as_lines(recordings[:1], f"ws://127.0.0.1:9, {server.url}", 10.0) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out.splitlines()[-1])["text"] == text_of(read_pcm(recordings[0]).tobytes())
    assert "no room" in shown.err
    assert "next attempt" in shown.err


def test_ctrl_c_ends_the_recordings_and_prints_their_finals(tmp_path: Path) -> None:
    long, never = tmp_path / "long.wav", tmp_path / "never.wav"
    soundfile.write(long, np.frombuffer(noise(800), np.int16), 16000)
    soundfile.write(never, np.frombuffer(noise(3), np.int16), 16000)
    with FakeListen().in_thread() as server:
        code = (
            "import sys; from contextlib import nullcontext; from pathlib import Path;"
            "from tutti_asr_client.files.display import JsonLines;"
            "from tutti_asr_client.files.transcribe import remote, run;"
            f"there = nullcontext(remote({server.url!r}));"
            f"files = [Path({str(long)!r}), Path({str(never)!r})];"
            "sys.exit(run(files, lambda: there, JsonLines(), realtime=True, concurrency=1))"
        )
        command = [sys.executable, "-c", code]
        with subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True) as process:
            while not (server.connections and len(server.connections[0].audio) > 3 * STEP_BYTES):
                time.sleep(0.02)  # another process's audio has no event here
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=WITHIN_S)
        sent = bytes(server.connections[0].audio)
    assert process.returncode == 130
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["type"] for line in lines] == ["final", "file", "error"]
    assert lines[1]["text"] == text_of(sent)
    assert lines[1]["duration_s"] == pytest.approx(len(sent) / 32_000, abs=1e-3)
    assert "interrupted" in lines[2]["error"]


def test_ctrl_c_is_exit_code_130(recordings: list[Path]) -> None:
    def interrupted() -> AbstractAsyncContextManager[Transcriber]:
        raise KeyboardInterrupt

    assert run(recordings, interrupted, JsonLines()) == 130


def test_run_accepts_any_transcriber(recordings: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
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
    assert run(recordings[:1], opening, JsonLines()) == 0
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
        display.done(Failed(Path("b.wav"), Unreachable("ws://h", "refused")))
    for shown in ("hello there", "final after 12 ms", "no server at ws://h"):
        assert shown in out.getvalue()
