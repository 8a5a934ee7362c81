"""The usage log: rotation, limits, failing writes, and records of streams that stay open."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from server.errors import SettingsError
from server.usage import log as usage_log
from server.usage.log import UsageFiles, UsageLog
from server.usage.meters import Reading, Subject, Usage, UsageMeter
from server.usage.record import UsageRecord, line_of, record_of
from tests.support.servers.fakes import WAIT_S

START = datetime(2026, 11, 27, 12, tzinfo=UTC)


def record(number: int = 0, **fields: Any) -> UsageRecord:
    given: dict[str, Any] = {
        "stream": f"stream {number}",
        "request_id": f"stream {number}",
        "key": "bank",
        "key_id": "id",
        "kind": "live",
        "protocol": "deepgram",
        "model": "tutti",
        "language": "en",
        "features": ("multichannel",),
        "from_s": 0.0,
        "to_s": (1.5, 1.5),
        "start": START,
        "end": START + timedelta(seconds=number),
        "reason": "close_stream",
    }
    return UsageRecord(**given | fields)


def read(folder: Path) -> list[UsageRecord]:
    return [record_of(line) for path in sorted(folder.glob("usage-*.jsonl")) for line in path.read_bytes().splitlines()]


def started(folder: Path, lost: list[float], *, max_bytes: int = 65_536, max_files: int = 100) -> UsageLog:
    log = UsageLog(UsageFiles(folder, max_bytes=max_bytes, max_files=max_files), lost.append, retry_s=0.01)
    log.start()
    return log


def test_a_record_is_read_as_it_was_written_and_times_end_with_z() -> None:
    line = line_of(record())
    assert record_of(line) == record()
    assert b'"start":"2026-11-27T12:00:00Z"' in line
    for other in (b"{", b"[]\n", b'{"stream":"a"}', line.replace(b"Z", b""), line.replace(b"[1.5,1.5]", b"[]")):
        with pytest.raises(ValueError, match="not a usage record"):
            record_of(other)


def test_all_records_are_written_at_the_end_in_files_below_the_limit(tmp_path: Path) -> None:
    lost: list[float] = []
    log = started(tmp_path / "new" / "folder", lost)
    for number in range(2_000):
        log.write(record(number))
    log.close()
    assert read(tmp_path / "new" / "folder") == [record(number) for number in range(2_000)]
    sizes = [path.stat().st_size for path in (tmp_path / "new" / "folder").iterdir()]
    assert len(sizes) > 5
    assert max(sizes) <= 65_536
    assert not lost


def test_a_record_is_synced_to_the_disk_while_the_process_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, fsync = threading.Event(), os.fsync

    def sync(fd: int) -> None:
        fsync(fd)
        synced.set()

    monkeypatch.setattr(usage_log.os, "fsync", sync)
    log = started(tmp_path, [])
    log.write(record(1))
    assert synced.wait(WAIT_S)
    assert read(tmp_path) == [record(1)]
    log.close()


def test_the_oldest_files_are_deleted_whoever_wrote_them(tmp_path: Path) -> None:
    for number in range(3):
        path = tmp_path / f"usage-2020-host-{number}.jsonl"
        path.write_bytes(line_of(record(number)))
        os.utime(path, (number, number))
    (tmp_path / "notes.txt").write_text("of the operator")
    files = UsageFiles(tmp_path, max_bytes=65_536, max_files=2)
    files.write(line_of(record(7)))
    assert [one.stream for one in read(tmp_path)] == ["stream 2", "stream 7"]
    assert (tmp_path / "notes.txt").exists()


def test_a_deleted_file_is_followed_by_another(tmp_path: Path) -> None:
    files = UsageFiles(tmp_path, max_bytes=65_536, max_files=5)
    files.write(line_of(record(1)))
    for path in tmp_path.iterdir():
        path.unlink()
    files.write(line_of(record(2)))
    assert read(tmp_path) == [record(2)]


def test_two_logs_of_one_folder_have_files_of_their_own(tmp_path: Path) -> None:
    one, other = (UsageFiles(tmp_path, max_bytes=65_536, max_files=5) for _ in range(2))
    one.write(line_of(record(1)))
    other.write(line_of(record(2)))
    one.write(line_of(record(3)))
    assert len(list(tmp_path.iterdir())) == 2
    assert {one.stream for one in read(tmp_path)} == {"stream 1", "stream 2", "stream 3"}


def test_an_append_that_fails_midway_leaves_no_incomplete_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = UsageFiles(tmp_path, max_bytes=65_536, max_files=5)
    files.write(line_of(record(1)))
    write, calls = os.write, []

    def full(fd: int, data: bytes) -> int:
        calls.append(data)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data[:20])

    with monkeypatch.context() as disk:
        disk.setattr(usage_log.os, "write", full)
        with pytest.raises(OSError, match="No space"):
            files.write(line_of(record(2)))
    files.write(line_of(record(3)))
    assert read(tmp_path) == [record(1), record(3)]


def test_a_write_that_fails_is_repeated_until_it_succeeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lost: list[float] = []
    log = started(tmp_path, lost)
    failing = [OSError(errno.ENOSPC, "No space left on device")] * 3
    repeated = threading.Event()
    write = UsageFiles.write

    def fails(self: UsageFiles, line: bytes) -> None:
        if failing:
            raise failing.pop()
        write(self, line)
        repeated.set()

    monkeypatch.setattr(UsageFiles, "write", fails)
    log.write(record(1))
    assert repeated.wait(WAIT_S)
    log.close()
    assert read(tmp_path) == [record(1)]
    assert not lost


def test_records_of_a_full_queue_and_of_a_full_disk_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(UsageFiles, "write", full)
    monkeypatch.setattr(usage_log, "MAX_RECORDS", 10)
    lost: list[float] = []
    waiting = UsageLog(UsageFiles(tmp_path, max_bytes=65_536, max_files=5), lost.append, retry_s=0.01)
    for number in range(12):
        waiting.write(record(number))
    assert sum(lost) == 2
    waiting.start()
    waiting.close(timeout_s=0.05)
    assert sum(lost) == 12
    assert not read(tmp_path)


def test_a_folder_that_cannot_be_used_is_an_error_of_the_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "inside"):
        with pytest.raises(SettingsError, match=r"^usage_log: cannot create the folder .*file"):
            UsageFiles(path, max_bytes=65_536, max_files=5)


# Meters


class Written:
    """A log that keeps its records, and counts by key."""

    def __init__(self) -> None:
        self.records: list[UsageRecord] = []
        self.counted: dict[str, float] = {}
        self.calls: list[str] = []
        self.on_write: Callable[[], object] = lambda: None

    def start(self) -> None: ...

    def write(self, record: UsageRecord) -> None:
        self.records.append(record)
        self.on_write()

    def close(self, timeout_s: float = 0.0) -> None: ...

    def began(self, key: str) -> None:
        self.calls.append(key)

    def received(self, key: str, audio_s: float) -> None:
        self.counted[key] = self.counted.get(key, 0.0) + audio_s


SUBJECT = Subject("request", "", "id of a key", "live", "deepgram", "tutti", "en")


def metered(steps: Callable[[UsageMeter, list[float]], None], *, every_s: float = 1_000.0) -> Written:
    """Run steps with a meter, and the positions of its two channels."""
    written = Written()

    async def run() -> None:
        usage = Usage(written, written, every_s=every_s, now=lambda: 1e9)  # type: ignore[arg-type]
        position = [0.0, 0.0]
        steps(usage.begin(SUBJECT, lambda: Reading(tuple(position), ())), position)

    asyncio.run(run())
    return written


def test_an_open_stream_has_a_record_after_each_period_with_new_audio() -> None:
    written = Written()

    async def run() -> None:
        usage = Usage(written, None, every_s=0.001)  # type: ignore[arg-type]
        position = [0.0]
        meter = usage.begin(SUBJECT, lambda: Reading(tuple(position), ("redact",)))
        for _ in range(3):
            reported = asyncio.Event()
            written.on_write = reported.set
            position[0] += 2.0
            await asyncio.wait_for(reported.wait(), WAIT_S)
        meter.end("idle")
        meter.end("drain")

    asyncio.run(run())
    assert [(one.to_s, one.reason) for one in written.records] == [
        ((2.0,), "open"),
        ((4.0,), "open"),
        ((6.0,), "open"),
        ((6.0,), "idle"),
    ]
    assert {one.features for one in written.records} == {("redact",)}


def test_audio_is_counted_once_by_key_over_all_channels() -> None:
    def steps(meter: UsageMeter, position: list[float]) -> None:
        meter.resumed("first connection", 10.0)
        position[:] = [10.0, 10.0]
        meter.audio_received()
        position[:] = [12.0, 12.0]
        meter.audio_received()
        position[:] = [15.0, 14.0]
        meter.audio_received()
        meter.end("close_stream")

    written = metered(steps)
    assert [(one.stream, one.request_id, one.from_s, one.to_s) for one in written.records] == [
        ("first connection", "request", 10.0, (12.0, 12.0)),
        ("first connection", "request", 10.0, (15.0, 14.0)),
    ]
    assert written.counted == {"id of a key": pytest.approx(9.0)}
    assert written.calls == ["id of a key"]


def test_streams_that_are_open_at_the_end_of_the_process_have_a_record() -> None:
    written = Written()

    async def run() -> None:
        usage = Usage(written)  # type: ignore[arg-type]
        usage.begin(SUBJECT, lambda: Reading((3.0,), ()))
        usage.report_open()

    asyncio.run(run())
    assert [(one.to_s, one.reason) for one in written.records] == [((3.0,), "open")]
