"""Recordings in processes of their own: the same samples, and what a crash, a hang or a lost fork server costs."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile

from server.audio.formats import audio_form
from server.audio.recordings.recording import Recording
from server.audio.recordings.remote_recording import ForkServer, RemoteRecording, forked_recording
from server.errors import BadAudio, ServerNotReady, TooLarge

RATE, ANY = 16_000, audio_form(None, None)
NOISE = np.random.default_rng(5).integers(-9_000, 9_000, (30 * RATE, 2)).astype(np.int16)
"""A fork server whose decoders fail in another way for each first byte of a body."""
BAD = """
import os, signal
from server.audio.recordings import fork_server
def decode(body, *_, **__):
    if body[:1] == b"c":
        os.kill(os.getpid(), signal.SIGSEGV)
    if body[:1] == b"m":
        bytearray(2**31)
    if body[:1] == b"d":
        raise ZeroDivisionError("a defect")
    while True:
        pass
fork_server.Recording = decode
fork_server.processor_time_s = lambda _: 1 - fork_server.GRACE_S
fork_server.main()
"""

LOWERED = """
import resource
from server.audio.recordings import fork_server
lower = {resource.RLIMIT_CPU: 8, resource.RLIMIT_DATA: 2**29}
for kind, limit in lower.items():
    resource.setrlimit(kind, (limit, limit))
set_limit = resource.setrlimit
def as_a_user(kind, limits):
    if limits[1] > lower.get(kind, limits[1]):
        raise ValueError("not allowed to raise maximum limit")
    set_limit(kind, limits)
resource.setrlimit = as_a_user
fork_server.main()
"""


def flac(samples: Any = NOISE) -> bytes:
    body = io.BytesIO()
    soundfile.write(body, samples, RATE, format="FLAC")
    return body.getvalue()


async def opened(recording: RemoteRecording, body: bytes) -> RemoteRecording:
    await recording.open(body, ANY, rate=RATE, max_s=60.0)
    return recording


async def blocks(recording: RemoteRecording) -> Any:
    return np.concatenate([block async for block in _blocks(recording)])


async def _blocks(recording: RemoteRecording) -> Any:
    while (block := await recording.next_block()) is not None:
        yield block


@pytest.fixture
def forks() -> Iterator[ForkServer]:
    server = ForkServer()
    yield server
    server.stop()


@pytest.fixture
def bad() -> Iterator[ForkServer]:
    forks = ForkServer("-c", BAD)
    yield forks
    forks.stop()


async def test_samples_and_warnings_are_those_of_the_recording(forks: ForkServer) -> None:
    body = flac()[:-20_000]
    here, expected = Recording(body, ANY, rate=RATE, max_s=60.0), []
    while (block := here.next_block()) is not None:
        expected.append(block)
    async with forked_recording(forks) as recording:
        samples = await blocks(await opened(recording, body))
        assert np.array_equal(samples, np.concatenate(expected))
        assert (recording.channels, recording.warnings) == (2, here.warnings)
        assert recording.warnings


async def test_refusals_are_those_of_the_recording(forks: ForkServer) -> None:
    async with forked_recording(forks) as recording:
        with pytest.raises(BadAudio, match="not a supported recording"):
            await opened(recording, b"no recording")
    async with forked_recording(forks) as recording:
        with pytest.raises(TooLarge, match="longer than the limit of 60 s"):
            await opened(recording, flac(np.zeros(61 * RATE)))


async def test_a_crash_costs_one_recording(forks: ForkServer) -> None:
    async with forked_recording(forks) as crashing, forked_recording(forks) as other:
        await opened(crashing, flac())
        await opened(other, flac())
        assert crashing._pid is not None
        os.kill(crashing._pid, signal.SIGSEGV)
        with pytest.raises(BadAudio, match="crashed"):
            await blocks(crashing)
        assert np.array_equal(await blocks(other), NOISE)


@pytest.mark.parametrize(
    ("body", "error", "text"),
    [
        (b"crash", BadAudio, "crashed"),
        (b"hang", BadAudio, "too much time"),
        (b"memory", TooLarge, "memory"),
        (b"defect", RuntimeError, "ZeroDivisionError: a defect"),
    ],
)
async def test_a_decoder_that_fails_is_an_error_of_its_upload(
    bad: ForkServer, body: bytes, error: type[Exception], text: str
) -> None:
    async with forked_recording(bad) as recording:
        with pytest.raises(error, match=text):
            await asyncio.wait_for(opened(recording, body), 20)


async def test_recordings_are_decoded_under_lower_limits_of_the_system() -> None:
    forks = ForkServer("-c", LOWERED)
    async with forked_recording(forks) as recording:
        assert np.array_equal(await blocks(await opened(recording, flac())), NOISE)
    forks.stop()


async def test_a_recording_that_is_not_wanted_any_more_ends_its_process(forks: ForkServer) -> None:
    async with forked_recording(forks) as recording:
        await opened(recording, flac())
        pid = recording._pid
    assert pid is not None
    end_s = time.monotonic() + 20
    while os.path.exists(f"/proc/{pid}"):  # noqa: ASYNC240, PTH110 - it does not block
        assert time.monotonic() < end_s
        await asyncio.sleep(0.01)


async def test_a_recording_that_is_killed_before_its_process_answers_is_not_opened(forks: ForkServer) -> None:
    async with forked_recording(forks) as recording:
        recording.kill()
        with pytest.raises(BadAudio):
            await opened(recording, flac())


async def test_a_fork_server_that_was_killed_is_started_again(forks: ForkServer) -> None:
    async with forked_recording(forks) as recording:
        await opened(recording, flac())
    assert forks._process is not None
    forks._process.kill()
    await asyncio.to_thread(forks._process.wait)
    async with forked_recording(forks) as recording:
        assert np.array_equal(await blocks(await opened(recording, flac())), NOISE)


async def test_a_program_that_cannot_fork_is_a_server_that_is_not_ready() -> None:
    forks = ForkServer("-c", "pass")
    with pytest.raises(ServerNotReady, match="no process"):
        async with forked_recording(forks) as recording:
            await opened(recording, flac())
    forks.stop()


def test_an_upload_whose_decoder_crashes_is_a_400_and_others_are_served(
    live_server: Any, bad: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = live_server()
    with monkeypatch.context() as patched:
        patched.setattr(server.replica.forks, "fork", bad.fork)
        answer = httpx.post(f"http://{server.host}/v1/listen", content=b"crash")
    assert (answer.status_code, "crashed" in answer.json()["err_msg"]) == (400, True)
    assert httpx.post(f"http://{server.host}/v1/listen", content=flac()).status_code == 200
