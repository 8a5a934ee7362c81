"""Streams during a fault, resumable or not, and their outcome: text, closes, losses and times."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice

import numpy as np
from numpy.typing import NDArray

from loadtest.errors import NoReference
from loadtest.generator.composition import compose, read_recordings
from loadtest.generator.level import Schedule
from loadtest.generator.settings import SAMPLE_RATE
from tutti_asr_client.connection_events import Connected, ConnectionEvents, Event, TicketRefused, Waiting
from tutti_asr_client.continuity import Beginning
from tutti_asr_client.errors import BadMessage, ClientError, ClosedAbnormally, Refused
from tutti_asr_client.files.pacing import PcmSource
from tutti_asr_client.live import ListenClient, connect
from tutti_asr_client.messages import Message, Metadata, Results
from tutti_asr_client.resilient import ResilientClient
from tutti_asr_client.retry import Retry
from tutti_asr_client.stream import open_stream
from tutti_asr_client.transcript import Transcript

PAUSE_S = 0.6
"""Pause between two recordings, long enough for an endpoint, so that a stream has several finals."""

PATIENCE_S = 120.0
"""Time for which a resumable stream tries to reconnect."""

DEAD_AFTER_S = 20.0
"""A server that does not answer a ping within this time counts as lost; longer than the tested health checks."""

FIRST_TICKET_S = 2.0
"""Audio within which a stream has its first ticket: servers send it after one second."""

SAME_S = 0.005
"""Tolerance for consecutive finals to be adjacent, since servers round times to milliseconds."""


@dataclass(frozen=True, slots=True)
class Audio:
    """Audio of several recordings, (S,) int16 at 16 kHz."""

    name: str
    pcm: NDArray[np.int16]

    @property
    def duration_s(self) -> float:
        """Length in seconds."""
        return len(self.pcm) / SAMPLE_RATE


@dataclass(slots=True)
class Outcome:
    """Outcome of a stream. `finished`: it got `Metadata` and a normal close. Times are those of the event loop."""

    audio: Audio
    text: str = ""
    finished: bool = False
    problem: str = ""
    closes: list[int] = field(default_factory=list)  # close codes other than 1000
    statuses: list[int] = field(default_factory=list)  # of refused handshakes
    events: ConnectionEvents = field(default_factory=ConnectionEvents)
    connected_at: list[float] = field(default_factory=list)
    lost_at: list[float] = field(default_factory=list)
    before_ticket: int = 0  # reconnections of a stream so young that it had no ticket
    covered_s: float = 0.0  # audio covered by finals
    gaps_s: float = 0.0  # audio between two finals that none covers

    @property
    def lost_s(self) -> float:
        """Audio not covered by finals."""
        behind_s = self.audio.duration_s - self.covered_s
        return max(self.events.lost_s, self.gaps_s + (behind_s if behind_s > SAME_S else 0.0))

    def take(self, results: Results) -> None:
        """Add a final."""
        gap_s = results.start - self.covered_s
        self.gaps_s += gap_s if gap_s > SAME_S else 0.0
        self.covered_s = max(self.covered_s, results.cursor_s)


def audios(count: int, seconds: float, seed: int) -> list[Audio]:
    """Return `count` audios of `seconds`, composed of shipped recordings in different order. Raises: AudioError."""
    recordings, rng, made = read_recordings(None)[""], random.Random(seed), list[Audio]()
    rng.shuffle(recordings)
    pause = np.zeros(round(PAUSE_S * SAMPLE_RATE), np.int16)
    for number in range(count):
        rest = compose(recordings, seconds, rng, (PAUSE_S, PAUSE_S))
        pcm = np.concatenate([recordings[number % len(recordings)], pause, rest])[: len(rest)]
        made.append(Audio(f"audio-{number}", pcm))
    return made


async def play_during(
    url: str, audios: Sequence[Audio], count: int, schedule: Schedule, outcomes: list[Outcome]
) -> None:
    """Play `count` resumable streams at once, each followed by another, as long as they end within the level."""

    async def play(audio: Audio) -> None:
        while time.perf_counter() < schedule.end_s - audio.duration_s:
            outcomes.append(await play_resumable(url, audio))

    await asyncio.gather(*(play(audio) for audio in islice(cycle(audios), count)))


async def reference_texts(url: str, wanted: Sequence[Audio]) -> dict[str, str]:
    """Return each audio's text without a fault, played one at a time at full speed. Raises: NoReference."""
    texts: dict[str, str] = {}
    for audio in wanted:
        outcome = await play_resumable(url, audio, realtime=False)
        if not outcome.finished or outcome.lost_at or outcome.lost_s or not outcome.text:
            raise NoReference(
                f"{audio.name} fails without a fault: {outcome.problem or 'finals do not cover its audio'}"
            )
        texts[audio.name] = outcome.text
    return texts


async def play_resumable(url: str, audio: Audio, *, realtime: bool = True) -> Outcome:
    """Play with resumption and retries. Problems are stored in the outcome, not raised."""
    loop = asyncio.get_running_loop()
    outcome, refused = Outcome(audio), False

    def note(event: Event) -> None:
        nonlocal refused
        if isinstance(event, Connected):
            had_ticket = refused or event.beginning is Beginning.TICKET or event.replay_s > FIRST_TICKET_S
            outcome.before_ticket += bool(outcome.connected_at) and not had_ticket
            outcome.connected_at.append(loop.time())
            refused = False
        elif isinstance(event, TicketRefused):
            refused = True
        elif isinstance(event, Waiting):
            outcome.lost_at.append(loop.time())
            _note_failure(outcome, event.error)

    opening = open_stream(
        url,
        resumable=True,
        retry=Retry(limit_s=PATIENCE_S, await_server=True),
        dead_after_s=DEAD_AFTER_S,
        on_event=note,
    )
    try:
        async with opening as stream:
            outcome.events = stream.events
            await _converse(stream, stream, outcome, realtime=realtime)
    except ClientError as error:
        outcome.problem = str(error)
    return outcome


async def play_plain(url: str, audio: Audio, *, realtime: bool = True) -> Outcome:
    """Play as a client that does not reconnect, with the finals of one that does. The outcome has the problems."""
    outcome = Outcome(audio)
    try:
        async with connect(url, dead_after_s=DEAD_AFTER_S, finals="fast") as client:
            outcome.connected_at.append(asyncio.get_running_loop().time())
            await _converse(client, client, outcome, realtime=realtime)
    except ClientError as error:
        outcome.problem = str(error)
        _note_failure(outcome, error)
    return outcome


def _note_failure(outcome: Outcome, error: ClientError) -> None:
    if isinstance(error, ClosedAbnormally):
        outcome.closes.append(error.code)
    elif isinstance(error, Refused):
        outcome.statuses.append(error.status)


async def _converse(
    stream: ListenClient | ResilientClient, messages: AsyncIterator[Message], outcome: Outcome, *, realtime: bool
) -> None:
    """Send all audio and receive all messages. Raises: ClientError."""
    transcript, summaries = Transcript(), 0
    sender = asyncio.create_task(_send(stream, outcome.audio, realtime=realtime))
    try:
        async for message in messages:
            summaries += isinstance(message, Metadata)
            if isinstance(message, Results) and message.is_final:
                transcript.add(message)
                outcome.take(message)
        await sender
    finally:
        outcome.text = transcript.text
        sender.cancel()
        await asyncio.wait({sender})
    if summaries != 1:
        raise BadMessage(f"received {summaries} Metadata messages, expected 1")
    outcome.finished = True


async def _send(stream: ListenClient | ResilientClient, audio: Audio, *, realtime: bool) -> None:
    async for message in PcmSource(audio.pcm, SAMPLE_RATE, realtime=realtime):
        await stream.send(message)
    await stream.close_stream()
