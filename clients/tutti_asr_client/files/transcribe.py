"""Transcription of files and of a microphone with any `Transcriber`: `tutti transcribe` and `tutti listen`.

Owns the order of work, the handling of interruptions, and the exit code.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from tutti_asr_client.address import QueryValue, listen_url
from tutti_asr_client.connection_events import AudioLost, Connected, Event, Waiting
from tutti_asr_client.errors import ClientError, Interrupted
from tutti_asr_client.files.audio import read_pcm
from tutti_asr_client.files.display import Display, JsonLines, UtteranceDisplay
from tutti_asr_client.files.file_result import Failed, FileResult, Transcribed, of_channels
from tutti_asr_client.files.microphone import Device, Microphone
from tutti_asr_client.files.pacing import PcmSource
from tutti_asr_client.files.transcriber import RemoteTranscriber, Transcriber
from tutti_asr_client.messages import Results
from tutti_asr_client.retry import Retry
from tutti_asr_client.transcript import Transcript

EXIT_OK = 0
EXIT_FILE_FAILED = 1
EXIT_INTERRUPTED = 130
"""128 + SIGINT, the convention of shells."""

MICROPHONE = Path("microphone")
"""Name of a microphone's audio where a file has its path."""

Reader = Callable[[Path, int], NDArray[np.int16]]
"""Reads a file as int16 samples at a rate in Hz, (S,) mono or (S, C). Raises: AudioError."""

OpenTranscriber = Callable[[], AbstractAsyncContextManager[Transcriber]]


def remote(
    url: str,
    *,
    api_key: str | None = None,
    sample_rate: int = 16_000,
    retry_s: float = 0.0,
    resumable: bool = False,
    query: Mapping[str, QueryValue] | None = None,
) -> RemoteTranscriber:
    """Return a transcriber on the server at `url`, which prints reconnections. `query` is sent to the server unchanged.

    `url` may list several replicas, separated by commas. `retry_s`: how long an absent or full server is retried.

    Raises:
        BadUrl: an address is invalid.
    """
    notes = Console(stderr=True)
    return RemoteTranscriber(
        [listen_url(one.strip(), query or {}) for one in url.split(",")],
        api_key=api_key,
        sample_rate=sample_rate,
        retry=Retry(limit_s=retry_s, await_server=True) if retry_s > 0 else None,
        resumable=resumable,
        on_event=lambda event: _note(notes, event),
    )


def _note(notes: Console, event: Event) -> None:
    """Print reconnections and lost audio."""
    match event:
        case Waiting(error=error, seconds=seconds):
            notes.print(f"{error}; next attempt in {seconds:.1f} s", style="yellow", highlight=False, soft_wrap=True)
        case AudioLost(seconds=seconds):
            notes.print(f"{seconds:.1f} s of audio were lost", style="red", highlight=False, soft_wrap=True)
        case Connected(took_s=took_s) if took_s > 0:
            notes.print(f"reconnected after {took_s:.2f} s", style="yellow", highlight=False, soft_wrap=True)


def run(
    files: Sequence[Path],
    open_transcriber: OpenTranscriber,
    display: Display,
    *,
    realtime: bool = False,
    concurrency: int = 8,
    read: Reader = read_pcm,
) -> int:
    """Transcribe files with the transcriber from `open_transcriber`, and show the results; return the exit code.

    The first interruption stops sending and waits for the finals; the second exits at once.
    """

    async def work(transcriber: Transcriber, stopping: asyncio.Event) -> Sequence[FileResult]:
        return await transcribe_files(
            files,
            transcriber,
            display=display,
            realtime=realtime,
            concurrency=concurrency,
            stopping=stopping,
            read=read,
        )

    file_results, stopped = _run(work, open_transcriber, display)
    if stopped:
        return EXIT_INTERRUPTED
    return EXIT_FILE_FAILED if any(isinstance(result, Failed) for result in file_results) else EXIT_OK


def run_microphone(
    open_transcriber: OpenTranscriber, *, device: Device = None, limit_s: float | None = None, as_json: bool = False
) -> int:
    """Transcribe what an input device records, until an interruption or for `limit_s`; return the exit code.

    Each final is a line of text; on a terminal the words after the last final are drawn below as they change. An
    interruption is the usual end: audio before it is still transcribed.
    """
    console = Console()
    display = JsonLines() if as_json else UtteranceDisplay(console)

    async def work(transcriber: Transcriber, stopping: asyncio.Event) -> Sequence[FileResult]:
        source = Microphone(transcriber.sample_rate, stopping, device=device, limit_s=limit_s)
        Console(stderr=True).print("listening; Ctrl-C ends", style="dim")
        result = await transcribe_source(MICROPHONE, source, transcriber, display)
        display.done(result)
        if source.lost:
            Console(stderr=True).print(f"audio was lost {source.lost} times: this machine is too slow", style="red")
        return [result]

    file_results, stopped = _run(work, open_transcriber, display)
    if stopped and not file_results:
        return EXIT_INTERRUPTED
    return EXIT_FILE_FAILED if any(isinstance(result, Failed) for result in file_results) else EXIT_OK


def _run(
    work: Callable[[Transcriber, asyncio.Event], Awaitable[Sequence[FileResult]]],
    open_transcriber: OpenTranscriber,
    display: Display,
) -> tuple[Sequence[FileResult], bool]:
    """Return the results of `work`, and whether it was interrupted; without results if it was interrupted twice."""
    stopped = False

    async def main() -> Sequence[FileResult]:
        nonlocal stopped
        stopping = asyncio.Event()
        async with open_transcriber() as transcriber:
            with display, _interruptible(stopping):
                file_results = await work(transcriber, stopping)
        stopped = stopping.is_set()
        return file_results

    try:
        return asyncio.run(main()), stopped
    except (KeyboardInterrupt, asyncio.CancelledError):
        return [], True


@contextlib.contextmanager
def _interruptible(stopping: asyncio.Event) -> Iterator[None]:
    """On the first SIGINT set `stopping`, on the second cancel the calling task."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()

    def interrupted() -> None:
        if stopping.is_set() and task is not None:
            task.cancel()
        stopping.set()

    try:
        loop.add_signal_handler(signal.SIGINT, interrupted)
    except (RuntimeError, ValueError, NotImplementedError):  # not the main thread, or no signal handlers here
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


async def transcribe_files(
    files: Sequence[Path],
    transcriber: Transcriber,
    *,
    display: Display | None = None,
    realtime: bool = False,
    concurrency: int = 8,
    stopping: asyncio.Event | None = None,
    read: Reader = read_pcm,
) -> list[FileResult]:
    """Return the result of each file, in the order given; at most `concurrency` are in progress at a time.

    After `stopping` is set no more audio is sent; audio already sent is still transcribed.
    """
    shown = display or Display()
    places = asyncio.Semaphore(concurrency)

    async def one(path: Path) -> FileResult:
        async with places:
            result = await transcribe_file(path, transcriber, shown, realtime=realtime, stopping=stopping, read=read)
        shown.done(result)
        return result

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(path)) for path in files]
    return [task.result() for task in tasks]


async def transcribe_file(
    path: Path,
    transcriber: Transcriber,
    display: Display,
    *,
    realtime: bool,
    stopping: asyncio.Event | None = None,
    read: Reader = read_pcm,
) -> FileResult:
    """Transcribe one file; a failure is returned as its result, so that the others continue.

    If `read` returns (S, C) samples, each of the C channels is transcribed on its own.
    """
    try:
        if stopping is not None and stopping.is_set():
            raise Interrupted("interrupted before the first audio")
        pcm = await asyncio.to_thread(read, path, transcriber.sample_rate)
    except ClientError as error:
        return Failed(path, error)
    channels = [pcm] if pcm.ndim == 1 else list(pcm.T)
    results = await asyncio.gather(
        *(
            transcribe_source(
                path,
                PcmSource(samples, transcriber.sample_rate, realtime=realtime, stopping=stopping),
                transcriber,
                display,
                channel=(number, len(channels)),
            )
            for number, samples in enumerate(channels)
        )
    )
    return of_channels(results)


async def transcribe_source(
    path: Path,
    source: PcmSource | Microphone,
    transcriber: Transcriber,
    display: Display,
    *,
    channel: tuple[int, int] = (0, 1),
) -> FileResult:
    """Transcribe the audio of a source under the name `path`; a failure is returned as its result.

    `channel`: the source's number in a recording of several channels, and their number.
    """
    loop = asyncio.get_running_loop()
    transcript = Transcript(channel[0])
    began_s = last_final_s = loop.time()
    try:
        async with contextlib.aclosing(transcriber.stream(source)) as messages:
            async for message in messages:
                if not isinstance(message, Results):
                    continue
                if message.is_final:
                    last_final_s = loop.time()
                of_channel = msgspec.structs.replace(message, channel_index=channel)
                transcript.add(of_channel)
                display.results(path, of_channel, transcript)
        if not source.duration_s:
            raise Interrupted("interrupted before the first audio")
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
