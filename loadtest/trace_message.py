"""Function calls that one message of audio costs: `python -m loadtest.trace_message`.

Starts `tutti serve` under a profiler in all its threads, sends a recording in messages as long as a step, or of another
length, and counts the calls of this project's functions in the 80 ms after a message. Frames of comprehensions,
lambdas and coroutines are left out, as are the calls of libraries. The message at the first quartile of calls is
printed, because what runs twice a second is in many others: by default as a table of files, with `--calls` in order.
"""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import CO_COROUTINE
from types import FrameType
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from loadtest.generator.recordings import shipped_manifest
from loadtest.program import EXIT_OK, ServeOptions, carry_out
from loadtest.served import ONE_PROCESS, ROOT, free_port, is_ready, serve_command, stop
from tutti_asr_client.files.audio import read_pcm

PROGRAM = "loadtest.trace_message"
PACKAGES = tuple(f"{ROOT / name}/" for name in ("batching", "model", "server"))
RATE = 16_000
MESSAGE_MS = 240  # a step of the shipped model
RECORDED_S = 0.08  # after a message
WARM_UP, COUNTED = 20, 25  # messages
READY_WITHIN_S = 120.0
Call = tuple[str, str]
"""File, relative to the checkout, and qualified name."""


class Recorder:
    """Keeps the calls of this project's functions while it is on; runs inside the server."""

    def __init__(self) -> None:
        self.on = False
        self.calls: list[Call] = []

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Take an event of the interpreter's profiler."""
        if self.on and event == "call":
            code = frame.f_code
            wakes = code.co_flags & CO_COROUTINE  # a task, such as uvicorn's, ten times a second
            if code.co_filename.startswith(PACKAGES) and not (wakes or code.co_name.startswith("<")):
                self.calls.append((code.co_filename.removeprefix(f"{ROOT}/"), code.co_qualname))

    def obey(self) -> None:
        """Start recording at each line of standard input, and write the calls at the next one."""
        for _ in sys.stdin:
            self.on = not self.on
            if not self.on:
                calls, self.calls = self.calls, []
                sys.stdout.write(json.dumps(calls) + "\n")
                sys.stdout.flush()


def serve() -> None:
    """Run `tutti serve` in this process, recorded."""
    recorder = Recorder()
    threading.Thread(target=recorder.obey, daemon=True).start()  # before the profiler: it is not recorded
    threading.setprofile(recorder)
    sys.setprofile(recorder)
    runpy.run_module("server.cli", run_name="__main__", alter_sys=True)


@contextmanager
def recorded_server(options: list[str]) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """Port and process of a recorded server that is ready."""
    port = free_port()
    command = serve_command(port, [*ONE_PROCESS, "--log-format", "json", *options])
    command[command.index("server.cli")] = PROGRAM
    process = subprocess.Popen(  # noqa: S603 - our own command
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        deadline_s = time.monotonic() + READY_WITHIN_S
        while not is_ready(port) and time.monotonic() < deadline_s and process.poll() is None:
            time.sleep(0.2)
        yield port, process
    finally:
        stop(process)  # type: ignore[arg-type]  # of bytes or text


def trace(options: list[str], message_ms: int = MESSAGE_MS) -> list[list[Call]]:
    """Return the calls of each counted message."""
    from websockets.sync.client import connect

    pcm = read_pcm(shipped_manifest().parent / "demo.flac", RATE).tobytes()
    size = message_ms * RATE // 1_000 * 2
    messages = []
    with recorded_server(options) as (port, process):
        assert process.stdin is not None
        assert process.stdout is not None
        url = f"ws://127.0.0.1:{port}/v1/listen?encoding=linear16&sample_rate={RATE}"
        with connect(url, compression=None, proxy=None) as socket:
            for number in range(WARM_UP + COUNTED):
                at = number * size % (len(pcm) - size)
                if number >= WARM_UP:
                    process.stdin.write("\n")
                    process.stdin.flush()
                    time.sleep(RECORDED_S / 8)  # until it records
                socket.send(pcm[at : at + size])
                time.sleep(RECORDED_S)
                if number >= WARM_UP:
                    process.stdin.write("\n")
                    process.stdin.flush()
                    messages.append([(file, name) for file, name in json.loads(process.stdout.readline())])
                time.sleep(max(0.0, message_ms / 1_000 - RECORDED_S - RECORDED_S / 8))
    return messages


def usual_message(messages: list[list[Call]]) -> list[Call]:
    """A message without what runs twice a second: a quarter of the messages cost no more calls."""
    return sorted(messages, key=len)[len(messages) // 4]


def show(calls: list[Call], counts: list[int], *, in_order: bool) -> None:
    """Print the calls in their order, or a table of files."""
    console = Console(highlight=False)
    if in_order:
        for file, name in calls:
            console.print(f"{file}: {name}", markup=False)
    else:
        table = Table("file", "calls", box=None)
        for file, count in Counter(file for file, _ in calls).most_common():
            table.add_row(file, str(count))
        console.print(table)
    files = len({file for file, _ in calls})
    spread = f"{min(counts)} to {max(counts)}"
    console.print(f"{len(calls)} calls in {files} files (first quartile of {len(counts)} messages: {spread})")


def main(
    *,
    calls: Annotated[bool, typer.Option("--calls", help="Print every call of the message, in order.")] = False,
    message_ms: Annotated[int, typer.Option(help="Audio of a message.")] = MESSAGE_MS,
    serve_option: ServeOptions = None,
) -> None:
    """Count the function calls that one message costs the server."""

    def work(_: str) -> int:
        messages = trace(serve_option or [], message_ms)
        show(usual_message(messages), [len(message) for message in messages], in_order=calls)
        return EXIT_OK

    carry_out(PROGRAM, work)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve()
    else:
        typer.run(main)
