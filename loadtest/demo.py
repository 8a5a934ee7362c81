"""`make demo`: start a server, stream one recording in real time, show partials and latencies.

Uses a real server process, socket and the shipped model.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
from pathlib import Path

from rich.console import Console
from rich.text import Text

from loadtest.generator.recordings import read_manifest
from loadtest.program import EXIT_BAD, EXIT_OK, exit_code
from loadtest.served import served
from tutti_asr_client.files.audio import read_pcm
from tutti_asr_client.files.pacing import PcmSource
from tutti_asr_client.files.transcriber import RemoteTranscriber
from tutti_asr_client.messages import Results
from tutti_asr_client.transcript import Transcript

RECORDING = "demo.flac"


def run_demo(console: Console) -> int:
    """Start a server, stream the recording, stop the server; returns the exit code, 1 for a wrong transcript."""
    return exit_code("demo", lambda: _demo(console))


def _demo(console: Console) -> int:
    recording = next(line for line in read_manifest(None) if line.audio.endswith(RECORDING))
    path = Path(recording.audio)
    console.print("starting `tutti serve` on a free loopback port …")
    with served(["--log-level", "warning"]) as url:
        console.print(f"streaming {path.name} to {url}/v1/listen in real time\n", highlight=False)
        text = asyncio.run(_stream(path, url, console))
    if text != recording.text:
        console.print(f"\nexpected: {recording.text}", style="red")
        return EXIT_BAD
    console.print("\nthe transcript is correct.", style="green")
    return EXIT_OK


async def _stream(path: Path, url: str, console: Console) -> str:
    transcriber = RemoteTranscriber(url, interim_stability="high")
    source = PcmSource(read_pcm(path, transcriber.sample_rate), transcriber.sample_rate, realtime=True)
    transcript, last_line, latencies_ms = Transcript(), "", list[float]()
    loop = asyncio.get_running_loop()
    last_final_s = 0.0
    async with contextlib.aclosing(transcriber.stream(source)) as messages:
        async for message in messages:
            if not isinstance(message, Results):
                continue
            transcript.add(message)
            if message.is_final:
                last_final_s = loop.time()
            elif source.began_s is not None:
                latencies_ms.append((loop.time() - source.began_s - message.cursor_s) * 1e3)
            line = _line(message, transcript)
            if message.words and line.plain != last_line:
                last_line = line.plain
                console.print(Text.assemble((f"{message.cursor_s:6.2f} s  ", "cyan"), line))
    final_ms = (last_final_s - (source.ended_s or last_final_s)) * 1e3
    console.print(f"\nfinal transcript: {transcript.text}", style="bold", highlight=False)
    cuts = statistics.quantiles(latencies_ms, n=50)
    console.print(
        f"latency of {len(latencies_ms)} steps, from the last sample to the result: "
        f"median {statistics.median(latencies_ms):.1f} ms, p98 {cuts[-1]:.1f} ms; "
        f"final text {final_ms:.1f} ms after the end of the audio",
        highlight=False,
    )
    return transcript.text


def _line(message: Results, transcript: Transcript) -> Text:
    if message.is_final:
        return Text.assemble(("final    ", "green"), message.text)
    space = " " if transcript.stable and transcript.unstable else ""
    return Text.assemble("partial  ", transcript.stable, space, (transcript.unstable, "dim"))
