"""Share of spoken numbers of which `redact` leaves no digit, with real recognition; and its processor time.

`python -m loadtest.benchmarks.redaction` starts a server, speaks card, social security and telephone numbers by two
synthesizers (and with recordings of digits that people read), and streams each of them in real time, without `redact`
and with several kinds. The conditions alternate within each group of streams, so that other programs affect all of
them; the cost is the median of the groups' ratios of the server's CPU time. Writes the figures as JSON and Markdown to
a folder, by default `loadtest/results/`.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec
import typer
import uvloop
from rich.console import Console

from loadtest.benchmarks.redaction.numbers import Spoken, assembled, digit_words, read, sound_alikes, synthesized
from loadtest.errors import BadSettings
from loadtest.program import RESULTS, Folder, Seed, ServeOptions, ServerUrl, carry_out
from loadtest.receipts import cpu_seconds
from loadtest.reports import environment, pages
from loadtest.reports.criteria import Criterion, conclude, table
from loadtest.reports.environment import Environment
from loadtest.served import ALL_IN, ONE_PROCESS, server_at
from model.errors import ModelError
from model.recordings import read_manifest
from tutti_asr_client.files.transcriber import RemoteTranscriber
from tutti_asr_client.messages import Results

NAME = "redaction"
NO_REDACTION = "none"
CONDITIONS: Mapping[str, tuple[str, ...]] = {
    NO_REDACTION: (),
    "pci, ssn, phone_number": ("pci", "ssn", "phone_number"),
    "numbers": ("numbers",),
    "aggressive_numbers": ("aggressive_numbers",),
}
"""Values of `redact` by the name of the condition."""

COST = 0.03
"""Share of the processor time that redaction may add."""

MESSAGE_S = 0.1
MESSAGE_BYTES = 3_200  # of 16-bit samples at 16 kHz


@dataclass(frozen=True, slots=True)
class Shown:
    """What a client saw of one recording: words of its finals, and of each interim result."""

    finals: tuple[str, ...]
    interims: tuple[tuple[str, ...], ...]

    @property
    def digits(self) -> int:
        """Words of the finals that say digits."""
        return digit_words(self.finals)

    @property
    def masked(self) -> bool:
        """Whether no word of a final says a digit."""
        return not self.digits

    @property
    def masked_in_interims(self) -> bool:
        """Whether no word of any result says a digit."""
        return self.masked and not any(map(digit_words, self.interims))


class Row(msgspec.Struct, frozen=True):
    """Recordings of one source under one condition: how many have no digit word, and how many digit words are left."""

    redact: str
    source: str
    numbers: int
    masked: int
    masked_in_interims: int
    without_sound_alikes: int
    digit_words: int


class Redacted(msgspec.Struct, frozen=True):
    """The result document. `cpu_s`: of the server by group of streams, by condition."""

    command: str
    bars: tuple[Criterion, ...]
    streams: int
    rows: tuple[Row, ...]
    cpu_s: tuple[dict[str, float], ...]
    environment: Environment


@dataclass(slots=True)
class Measured:
    """Results of every recording by condition, and the server's CPU time by group."""

    shown: dict[str, list[Shown]] = field(default_factory=lambda: {name: [] for name in CONDITIONS})
    cpu_s: list[dict[str, float]] = field(default_factory=list)


async def _chunks(spoken: Spoken, start_s: float) -> AsyncIterator[bytes]:
    """Yield the audio as a microphone does, from this time of the event loop on."""
    raw, loop = spoken.pcm.tobytes(), asyncio.get_running_loop()
    for number, start in enumerate(range(0, len(raw), MESSAGE_BYTES), 1):
        await asyncio.sleep(start_s + number * MESSAGE_S - loop.time())
        yield raw[start : start + MESSAGE_BYTES]


async def _stream(url: str, spoken: Spoken, kinds: Sequence[str], start_s: float) -> Shown:
    finals: list[str] = []
    interims: list[tuple[str, ...]] = []
    transcriber = RemoteTranscriber(url, redact=kinds, interim_results=True)
    async for message in transcriber.stream(_chunks(spoken, start_s)):
        if isinstance(message, Results):
            words = tuple(message.text.split())
            if message.is_final:
                finals += words
            else:
                interims.append(words)
    return Shown(tuple(finals), tuple(interims))


async def _stream_all(url: str, group: Sequence[Spoken], kinds: Sequence[str]) -> list[Shown]:
    begin_s = asyncio.get_running_loop().time()
    starts = [begin_s + MESSAGE_S * at / len(group) for at in range(len(group))]  # spread over a message
    async with asyncio.TaskGroup() as tasks:
        pairs = zip(group, starts, strict=True)
        running = [tasks.create_task(_stream(url, spoken, kinds, start_s)) for spoken, start_s in pairs]
    return [task.result() for task in running]


def measure(url: str, recordings: Sequence[Spoken], streams: int) -> Measured:
    """Stream every recording under each condition, `streams` at once. Raises: ClientError, LoadTestError."""
    found = Measured()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for number, start in enumerate(range(0, len(recordings), streams)):
            names, spent = list(CONDITIONS), {}
            for name in names[number % len(names) :] + names[: number % len(names)]:  # another order in each group
                before_s = cpu_seconds(url)
                found.shown[name] += runner.run(_stream_all(url, recordings[start : start + streams], CONDITIONS[name]))
                spent[name] = round(cpu_seconds(url) - before_s, 3)
            found.cpu_s.append(spent)
            Console(stderr=True).print(f"group {number + 1}: {spent}", highlight=False)
    return found


def rows(recordings: Sequence[Spoken], shown: Mapping[str, Sequence[Shown]]) -> list[Row]:
    """Return a row for each condition and source, and one for all sources."""
    sources = list(dict.fromkeys(spoken.source for spoken in recordings))
    found = []
    for name, every in shown.items():
        for source in (*sources, "all"):
            chosen = [one for spoken, one in zip(recordings, every, strict=True) if source in (spoken.source, "all")]
            found.append(
                Row(
                    redact=name,
                    source=source,
                    numbers=len(chosen),
                    masked=sum(one.masked for one in chosen),
                    masked_in_interims=sum(one.masked_in_interims for one in chosen),
                    without_sound_alikes=sum(one.masked and not sound_alikes(one.finals) for one in chosen),
                    digit_words=sum(one.digits for one in chosen),
                )
            )
    return found


def costs(cpu_s: Sequence[Mapping[str, float]]) -> list[Criterion]:
    """Return the processor time that each kind of redaction adds: the median of the groups' ratios."""
    return [
        Criterion(
            f"CPU time that `redact={name}` adds, median of groups, as a share",
            COST,
            round(statistics.median(group[name] / group[NO_REDACTION] - 1 for group in cpu_s), 4),
        )
        for name in CONDITIONS
        if name != NO_REDACTION
    ]


def markdown(found: Redacted) -> str:
    """Return the page."""
    heads = (
        "redact",
        "spoken by",
        "numbers",
        "no digit in a final",
        "nor in an interim",
        "nor a word like one",
        "left",
    )
    cells = [
        (
            one.redact,
            one.source,
            str(one.numbers),
            *(f"{count / one.numbers:.3f}" for count in (one.masked, one.masked_in_interims, one.without_sound_alikes)),
            str(one.digit_words),
        )
        for one in found.rows
    ]
    lines = ["# Redaction of spoken numbers", "", f"`{found.command}`", ""]
    lines += [
        "Shares of spoken numbers of which no digit word is left in the finals; in no interim either; and in the",
        'finals no word that sounds like a digit either ("for", "ate"). Last column: digit words',
        f"left in all finals. {found.streams} streams at once.",
        "",
    ]
    lines += [*pages.table(heads, cells), "", *table(found.bars), "", *pages.place_lines(found.environment), ""]
    return "\n".join(lines)


def recordings_of(count: int, digits: Path | None, numbers: Path | None, seed: int) -> list[Spoken]:
    """Return all recordings, mixed. Raises: SynthesizerError, ManifestError, BadSettings."""
    if count < 1:
        raise BadSettings("--numbers must be at least 1")
    share = count // (2 if digits is None else 3)
    made = [*synthesized("espeak-ng", count - share * (1 if digits is None else 2), seed)]
    made += synthesized("flite", share, seed)
    made += [] if digits is None else assembled(read_manifest(digits), share, seed)
    made += [] if numbers is None else read(read_manifest(numbers))
    return [made[place] for start in range(7) for place in range(start, len(made), 7)]  # sources in every group


def main(
    *,
    numbers: Annotated[int, typer.Option(help="Numbers by synthesizers and from read digits.")] = 500,
    digits: Annotated[Path | None, typer.Option(help="Manifest of single digits that people read.")] = None,
    read_numbers: Annotated[Path | None, typer.Option(help="Manifest of telephone numbers that people read.")] = None,
    streams: Annotated[int, typer.Option(help="Streams at once.", min=1)] = 100,
    url: ServerUrl = None,
    serve_option: ServeOptions = None,
    seed: Seed = 1,
    folder: Folder = RESULTS,
) -> None:
    """Measure the share of spoken numbers that redaction masks, and its cost."""

    def work(command: str) -> int:
        recordings = recordings_of(numbers, digits, read_numbers, seed)
        with server_at(url, [*ALL_IN, *ONE_PROCESS, *(serve_option or ())]) as address:
            measured = measure(address, recordings, streams)
        bars, found = costs(measured.cpu_s), rows(recordings, measured.shown)
        place = environment.describe(seed)
        result = Redacted(command, tuple(bars), streams, tuple(found), tuple(measured.cpu_s), place)
        return conclude(result, bars, markdown(result), folder, NAME)

    carry_out("loadtest.benchmarks.redaction", work, ModelError)


if __name__ == "__main__":
    typer.run(main)
