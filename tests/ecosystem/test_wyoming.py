"""`wyoming` from PyPI, unmodified: Home Assistant's client of voice services, against a server with front ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from loadtest.served import free_port
from tests.ecosystem.recordings import RATE_HZ, audio, text
from tests.ecosystem.serving import ServerProcess
from tests.support.needs import missing

try:
    from wyoming.asr import Transcribe, Transcript, TranscriptChunk, TranscriptStart, TranscriptStop
    from wyoming.audio import AudioChunk, AudioStart, AudioStop
    from wyoming.client import AsyncClient, AsyncTcpClient
    from wyoming.error import Error
    from wyoming.info import Describe, Info
except ImportError:
    missing("wyoming not installed")

WITHIN_S = 30.0
CHUNK_BYTES = 2_048  # of Home Assistant's microphones
FORM = {"rate": RATE_HZ, "width": 2, "channels": 1}
NAMES = ("order", "porch_fan")


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Port of Wyoming, of a server whose other clients need keys."""
    chosen = free_port()
    with ServerProcess(wyoming_port=chosen, max_streams=2):
        yield chosen


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[AsyncClient]:
    async with AsyncTcpClient("127.0.0.1", port) as client, asyncio.timeout(WITHIN_S):
        yield client


async def speak(client: AsyncClient, said: bytes, **asked: Any) -> None:
    """Send a voice command as Home Assistant's pipeline does."""
    await send_audio(client, said, **asked)
    await client.write_event(AudioStop().event())


async def send_audio(client: AsyncClient, said: bytes, **asked: Any) -> None:
    """Send a voice command without its end."""
    await client.write_event(Transcribe(**asked).event())
    await client.write_event(AudioStart(**FORM, timestamp=0).event())
    for start in range(0, len(said), CHUNK_BYTES):
        await client.write_event(AudioChunk(**FORM, audio=said[start : start + CHUNK_BYTES], timestamp=0).event())


async def events(client: AsyncClient) -> AsyncIterator[Any]:
    """Read events up to the transcript's end, or the connection's."""
    while (event := await client.read_event()) is not None:
        yield event
        if TranscriptStop.is_type(event.type):
            return


def test_home_assistant_finds_a_program_with_its_languages(port: int) -> None:
    async def described() -> Info:
        async with connected(port) as client:
            await client.write_event(Describe().event())
            event = await client.read_event()
            assert event is not None
            return Info.from_event(event)

    [program] = asyncio.run(described()).asr
    assert program.installed
    assert program.supports_transcript_streaming
    assert program.requires_external_vad
    assert {language for model in program.models if model.installed for language in model.languages} == {"en", "zh"}


def test_commands_of_one_connection_have_their_words_in_chunks_and_as_a_whole(port: int) -> None:
    async def talk() -> list[list[Any]]:
        async with connected(port) as client:
            found = []
            for name in NAMES:
                await speak(client, audio(name), language="en")
                found.append([event async for event in events(client)])
            return found

    for name, answered in zip(NAMES, asyncio.run(talk()), strict=True):
        first, *chunks, whole, last = answered
        assert TranscriptStart.is_type(first.type)
        assert TranscriptStart.from_event(first).language == "en"
        assert "".join(TranscriptChunk.from_event(chunk).text for chunk in chunks) == text(name)
        assert Transcript.from_event(whole).text == text(name)
        assert TranscriptStop.is_type(last.type)


async def test_settled_words_come_before_the_end_of_the_audio(port: int) -> None:
    async with connected(port) as client:
        await send_audio(client, audio("porch_fan"), language="en")
        early = ""
        while not early:
            event = await client.read_event()
            assert event is not None
            early = TranscriptChunk.from_event(event).text if TranscriptChunk.is_type(event.type) else ""
        await client.write_event(AudioStop().event())
        *_, last, _ = [event async for event in events(client)]
    whole = Transcript.from_event(last).text
    assert whole == text("porch_fan")
    assert whole.startswith(early)


def test_a_pipeline_that_reads_up_to_the_transcript_alone(port: int) -> None:
    """Home Assistant's own loop: a connection a command, other events are passed over."""

    async def transcribed() -> str:
        async with connected(port) as client:
            await speak(client, audio("porch_fan"), name="tutti", language="en-US", transcript_names=["Porch Fan"])
            while (event := await client.read_event()) is not None:
                if Transcript.is_type(event.type):
                    return Transcript.from_event(event).text
            raise AssertionError("the connection was lost")

    assert asyncio.run(transcribed()) == text("porch_fan")


async def test_a_refusal_is_an_error_and_the_end_of_the_connection(port: int) -> None:
    async with connected(port) as client:
        await speak(client, audio("porch_fan"), language="tlh")
        [refusal] = [event async for event in events(client)]
    error = Error.from_event(refusal)
    assert "tlh" in error.text
    assert error.code == "INVALID_QUERY_PARAMETER"
