"""Drives livekit-plugins-deepgram and livekit-plugins-openai for test_livekit.py."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
from lines import Happened, main, read_audio, tell
from livekit import rtc
from livekit.agents import APIConnectOptions, APIError, APIStatusError, stt, utils
from livekit.plugins import deepgram, openai

RATE_HZ = 16_000
FRAME_SAMPLES = RATE_HZ // 100  # as LiveKit's rooms deliver them


def frames_of(path: str) -> list[rtc.AudioFrame]:
    raw = read_audio(path)
    chunks = (raw[start : start + 2 * FRAME_SAMPLES] for start in range(0, len(raw), 2 * FRAME_SAMPLES))
    return [rtc.AudioFrame(chunk, RATE_HZ, 1, len(chunk) // 2) for chunk in chunks]


def make(
    host: str, key: str, session: aiohttp.ClientSession, options: dict[str, Any], *, turns: bool = False
) -> deepgram.STT | deepgram.STTv2:
    """`turns`: by the client of Deepgram's Flux protocol."""
    client, path = (deepgram.STTv2, "/v2/listen") if turns else (deepgram.STT, "/v1/listen")
    made = client(base_url=f"http://{host}{path}", api_key=key, http_session=session, **options)
    made.on("error", tell_error)
    return made


def tell_error(error: stt.STTError) -> None:
    status = error.error.status_code if isinstance(error.error, APIStatusError) else None
    tell("error", recoverable=error.recoverable, status=status)


async def stream(
    host: str,
    key: str,
    steps: list[list[Any]],
    lines: asyncio.Queue[str],
    options: dict[str, Any] | None = None,
    turns: bool = False,
    retries: dict[str, Any] | None = None,
) -> None:
    """Steps: ("push", file), ("flush",), ("wait", event type, times), ("update", options), ("signal",).

    `retries` are arguments of `APIConnectOptions`. Then the input ends. Left to itself the client notices
    its end only at its next keep-alive, up to 5 s later: so it ends on a signal. That of turns ends as the server does.
    """
    async with aiohttp.ClientSession() as session:
        client, happened = make(host, key, session, options or {}, turns=turns), Happened()
        speech = client.stream(conn_options=APIConnectOptions(**(retries or {})))
        doing = asyncio.create_task(take_steps(speech, steps, happened, lines, ends_itself=turns))
        try:
            async for event in speech:
                tell_event(event)
                happened.note(event.type.name)
        except APIError as error:
            tell("raised", type=type(error).__name__, status=getattr(error, "status_code", None))
        finally:
            doing.cancel()
            await asyncio.gather(doing, return_exceptions=True)


async def realtime(host: str, key: str, audio: str, finals: int, lines: asyncio.Queue[str]) -> None:
    """A recording by OpenAI's Realtime protocol, up to the usage of this many final transcripts."""
    async with utils.http_context.open():
        client = openai.STT(base_url=f"http://{host}/v1", api_key=key, model="gpt-4o-transcribe", use_realtime=True)
        client.on("error", tell_error)
        speech, reported = client.stream(), 0
        for frame in frames_of(audio):
            speech.push_frame(frame)
        async for event in speech:
            tell_event(event)
            reported += event.type is stt.SpeechEventType.RECOGNITION_USAGE
            if reported == finals:
                break
        await speech.aclose()
        await client.aclose()


async def take_steps(
    speech: stt.SpeechStream,
    steps: list[list[Any]],
    happened: Happened,
    lines: asyncio.Queue[str],
    *,
    ends_itself: bool,
) -> None:
    for name, *arguments in steps:
        if name == "push":
            for frame in frames_of(*arguments):
                speech.push_frame(frame)
        elif name == "flush":
            speech.flush()
        elif name == "wait":
            await happened.wait(*arguments)
        elif name == "update":
            speech.update_options(**arguments[0])
        elif name == "signal":
            await lines.get()
    speech.end_input()
    if not ends_itself:
        await lines.get()
        await speech.aclose()


def tell_event(event: stt.SpeechEvent) -> None:
    said = event.alternatives[0] if event.alternatives else None
    words = [(str(word), word.start_time, word.end_time) for word in (said.words or [])] if said else []
    usage = {} if event.recognition_usage is None else {"seconds": event.recognition_usage.audio_duration}
    speaker = said.speaker_id if said else None
    text = said.text if said else ""
    tell(event.type.name, text=text, words=words, request_id=event.request_id, speaker=speaker, **usage)


async def recognize(host: str, key: str, audio: str, lines: asyncio.Queue[str]) -> None:
    """A whole recording at once."""
    async with aiohttp.ClientSession() as session:
        try:
            tell_event(await make(host, key, session, {}).recognize(frames_of(audio)))
        except APIError as error:
            tell("raised", type=type(error).__name__, status=getattr(error, "status_code", None))


if __name__ == "__main__":
    main(stream=stream, recognize=recognize, realtime=realtime)
