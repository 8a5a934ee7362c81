"""Totals of usage records: read the files of any number of servers, and add up by key, day, model and so on.

A stream's records may be in files of several servers, overlap where audio was sent again after a loss, or be there
twice. So each stream has one axis of time, its own, and counts how far that was reached by the end of each hour.
"""

from __future__ import annotations

import gzip
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from server.usage.log import PATTERN
from server.usage.record import OPEN, UsageRecord, record_of

HOUR_S = 3_600


class UsageError(Exception):
    """A file that is not a usage log; the message begins with its name."""


@dataclass(slots=True)
class _Stream:
    """Records of one stream or upload. Hours are whole ones since 1970."""

    latest: UsageRecord
    first_hour: int
    base_s: float  # stream time at which the audio of the first record begins
    reached: dict[int, tuple[float, ...]] = field(default_factory=dict)  # by channel, at the end of each hour

    def add(self, record: UsageRecord) -> None:
        """Take a record."""
        if (record.end, record.reason != OPEN) > (self.latest.end, self.latest.reason != OPEN):
            self.latest = record
        self.first_hour = min(self.first_hour, _hour(record.start))
        self.base_s = min(self.base_s, record.from_s)
        hour = _hour(record.end)
        self.reached[hour] = _furthest(self.reached.get(hour, ()), record.to_s)

    def by_hour(self) -> Iterator[tuple[int, float, float]]:
        """Return seconds of audio by hour: of the call, and over all channels."""
        before: tuple[float, ...] = ()
        for hour in sorted(self.reached):
            reached = _furthest(before, self.reached[hour])
            past = (*before, *(self.base_s for _ in reached[len(before) :]))
            yield (hour, max(reached) - max(past), sum(now - then for now, then in zip(reached, past, strict=True)))
            before = reached


@dataclass(slots=True)
class Total:
    """Usage of one group. A stream counts where it began; `unfinished` are streams without a last record."""

    streams: int = 0
    seconds: float = 0.0  # of calls, each counted once, however many channels it has
    channel_seconds: float = 0.0
    unfinished: int = 0


GROUPS: dict[str, Callable[[UsageRecord, int], str]] = {
    "key": lambda record, _: record.key or record.key_id,
    "key_id": lambda record, _: record.key_id,
    "day": lambda _, hour: f"{_time(hour):%Y-%m-%d}",
    "month": lambda _, hour: f"{_time(hour):%Y-%m}",
    "model": lambda record, _: record.model,
    "language": lambda record, _: record.language,
    "protocol": lambda record, _: record.protocol,
    "kind": lambda record, _: record.kind,
    "reason": lambda record, _: record.reason,
}
"""What totals can be grouped by: the text of a record, or of the hour of its audio."""


class Totals:
    """Usage between two times, grouped."""

    def __init__(self, by: Sequence[str], since: datetime | None = None, until: datetime | None = None) -> None:
        """`by` are names of `GROUPS`; `since` and `until` are whole hours, `until` the first that does not count."""
        self._groups = [GROUPS[name] for name in by]
        self._since = -1 if since is None else _hour(since)
        self._until = 1 << 40 if until is None else _hour(until)
        self._streams: dict[str, _Stream] = {}

    def add(self, record: UsageRecord) -> None:
        """Take a record, in any order."""
        stream = self._streams.get(record.stream)
        if stream is None:
            stream = self._streams[record.stream] = _Stream(record, _hour(record.start), record.from_s)
        stream.add(record)

    def rows(self) -> dict[tuple[str, ...], Total]:
        """Return the totals by group, sorted."""
        by_group: dict[tuple[str, ...], Total] = {}
        for stream in self._streams.values():
            if self._since <= stream.first_hour < self._until:
                total = by_group.setdefault(self._group(stream, stream.first_hour), Total())
                total.streams += 1
                total.unfinished += stream.latest.reason == OPEN
            for hour, seconds, channel_seconds in stream.by_hour():
                if self._since <= hour < self._until and channel_seconds > 0:
                    total = by_group.setdefault(self._group(stream, hour), Total())
                    total.seconds += seconds
                    total.channel_seconds += channel_seconds
        return dict(sorted(by_group.items()))

    def _group(self, stream: _Stream, hour: int) -> tuple[str, ...]:
        return tuple(group(stream.latest, hour) for group in self._groups)


def total_of(rows: dict[tuple[str, ...], Total]) -> Total:
    """Add up all groups."""
    return Total(
        sum(row.streams for row in rows.values()),
        sum(row.seconds for row in rows.values()),
        sum(row.channel_seconds for row in rows.values()),
        sum(row.unfinished for row in rows.values()),
    )


def usage_files(paths: Sequence[Path]) -> list[Path]:
    """Return the files, and those of folders, each once. Raises: UsageError for a folder without any."""
    by_path: dict[Path, Path] = {}
    for path in paths:
        files = sorted(path.glob(PATTERN)) if path.is_dir() else [path]
        if not files:
            raise UsageError(f"{path}: contains no usage file ({PATTERN}); is it the folder of TUTTI_USAGE_LOG?")
        by_path |= {file.resolve(): file for file in files}
    return list(by_path.values())


def read_records(path: Path, on_incomplete: Callable[[Path], None]) -> Iterator[UsageRecord]:
    """Read a file, also while it is written, or compressed as .gz. Raises: UsageError, OSError.

    A last line that a killed server did not finish is left out, and passed to `on_incomplete`.
    """
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                yield record_of(line.removeprefix(BOM_UTF8) if number == 1 else line)
            except ValueError as error:
                if line.endswith(b"\n"):
                    raise UsageError(f"{path}:{number}: {error}; remove the line, or leave out the file") from error
                on_incomplete(path)


def _hour(time: datetime) -> int:
    return int(time.timestamp() // HOUR_S)


def _time(hour: int) -> datetime:
    return datetime.fromtimestamp(hour * HOUR_S, UTC)


def _furthest(one: tuple[float, ...], other: tuple[float, ...]) -> tuple[float, ...]:
    """Return the larger stream time of each channel; either may have fewer channels."""
    channels = range(max(len(one), len(other)))
    return tuple(max(times[i] for times in (one, other) if i < len(times)) for i in channels)
