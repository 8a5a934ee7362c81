"""`tutti transcribe`: files in, transcripts out, through any `Transcriber`.

Owns the order of work and the exit code. Does not know whether the recogniser is in this process.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from rich.console import Console

from clients.address import QueryValue, listen_url
from clients.audio import read_pcm
from clients.display import Display, JsonLines, SilentDisplay, TerminalDisplay
from clients.errors import ClientError
from clients.messages import Results
from clients.outcome import Failed, Outcome, Transcribed
from clients.pacing import PcmSource
from clients.transcriber import RemoteTranscriber, Transcriber
from clients.transcript import Transcript

EXIT_OK = 0
EXIT_FILE_FAILED = 1
EXIT_INTERRUPTED = 130
"""128 + SIGINT, as shells report it."""

OpenTranscriber = Callable[[], AbstractAsyncContextManager[Transcriber]]


def run_remote(
    files: Sequence[Path],
    *,
    url: str,
    api_key: str | None = None,
    realtime: bool = False,
    as_json: bool = False,
    concurrency: int = 8,
    query: Mapping[str, QueryValue] | None = None,
) -> int:
    """Transcribe files through the server at `url`; returns the exit code. `query` goes to the server as it is."""
    transcriber = RemoteTranscriber(listen_url(url, query or {}), api_key=api_key)
    return run(
        files,
        lambda: contextlib.nullcontext(transcriber),
        realtime=realtime,
        as_json=as_json,
        concurrency=concurrency,
    )


def run(
    files: Sequence[Path],
    open_transcriber: OpenTranscriber,
    *,
    realtime: bool = False,
    as_json: bool = False,
    concurrency: int = 8,
) -> int:
    """Transcribe files through the transcriber that `open_transcriber` opens; returns the exit code.

    Partials are drawn live when standard output is a terminal; otherwise, or with `as_json`, it
    receives JSON lines.
    """
    console = Console()
    display: Display = JsonLines() if as_json or not console.is_terminal else TerminalDisplay(console)

    async def main() -> list[Outcome]:
        async with open_transcriber() as transcriber:
            with display:
                return await transcribe_files(
                    files, transcriber, display=display, realtime=realtime, concurrency=concurrency
                )

    try:
        outcomes = asyncio.run(main())
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return EXIT_FILE_FAILED if any(isinstance(outcome, Failed) for outcome in outcomes) else EXIT_OK


async def transcribe_files(
    files: Sequence[Path],
    transcriber: Transcriber,
    *,
    display: Display | None = None,
    realtime: bool = False,
    concurrency: int = 8,
) -> list[Outcome]:
    """What became of each file, in the order given; at most `concurrency` are open at a time."""
    shown = SilentDisplay() if display is None else display
    places = asyncio.Semaphore(concurrency)

    async def one(path: Path) -> Outcome:
        async with places:
            outcome = await transcribe_file(path, transcriber, shown, realtime=realtime)
        shown.done(outcome)
        return outcome

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(path)) for path in files]
    return [task.result() for task in tasks]


async def transcribe_file(path: Path, transcriber: Transcriber, display: Display, *, realtime: bool) -> Outcome:
    """Recognise one file; its failures become an outcome, so that the others go on."""
    loop = asyncio.get_running_loop()
    transcript = Transcript()
    try:
        pcm = await asyncio.to_thread(read_pcm, path, transcriber.sample_rate)
        source = PcmSource(pcm, transcriber.sample_rate, realtime=realtime)
        began_s = last_final_s = loop.time()
        async with contextlib.aclosing(transcriber.stream(source)) as messages:
            async for message in messages:
                if not isinstance(message, Results):
                    continue
                if message.is_final:
                    last_final_s = loop.time()
                transcript.add(message)
                display.results(path, message, transcript)
    except ClientError as error:
        return Failed(path, error)
    audio_ended_s = last_final_s if source.ended_s is None else source.ended_s
    return Transcribed(
        path=path,
        text=transcript.text,
        words=transcript.words,
        duration_s=source.duration_s,
        elapsed_s=last_final_s - began_s,
        final_latency_s=max(0.0, last_final_s - audio_ended_s),
    )
