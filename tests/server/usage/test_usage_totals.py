"""Totals: resumed, killed and doubled streams count once; groups, periods, and the command that prints them."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
from codecs import BOM_UTF8
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from server.cli import app
from server.cli.usage import GROUPS as OFFERED
from server.usage.record import OPEN, UsageRecord, line_of
from server.usage.totals import GROUPS, Totals, total_of
from tests.server.usage.test_usage_log import START, record


def totals(records: list[UsageRecord], by: str = "key", **period: datetime) -> dict[tuple[str, ...], tuple[Any, ...]]:
    found = Totals(by.split(","), **period)
    for one in records:
        found.add(one)
    return {
        group: (total.streams, round(total.seconds, 6), round(total.channel_seconds, 6), total.unfinished)
        for group, total in found.rows().items()
    }


def part(end_s: float, to_s: float, reason: str = OPEN, *, from_s: float = 0.0, **fields: Any) -> UsageRecord:
    end = START + timedelta(seconds=end_s)
    return record(from_s=from_s, to_s=(to_s,), end=end, reason=reason, **fields)


def test_records_of_one_stream_count_once_and_channels_each() -> None:
    stereo = record(1, to_s=(10.0, 10.0))
    assert totals([stereo, stereo]) == {("bank",): (1, 10.0, 20.0, 0)}
    assert totals([part(60, 60), part(120, 120), part(130, 130, "idle")]) == {("bank",): (1, 130.0, 130.0, 0)}
    assert totals([record(1, to_s=(4.0, 6.0))]) == {("bank",): (1, 6.0, 10.0, 0)}


def test_a_stream_that_was_killed_and_resumed_counts_what_was_sent() -> None:
    killed = [part(1, 1.0), part(60, 59.5)]  # up to 71 s were received
    resumed = part(100, 100.0, "close_stream", from_s=70.5, request_id="second")
    assert totals([*killed, resumed]) == {("bank",): (1, 100.0, 100.0, 0)}
    assert totals([resumed]) == {("bank",): (1, 29.5, 29.5, 0)}, "the first connection's records were deleted"
    assert totals(killed) == {("bank",): (1, 59.5, 59.5, 1)}, "it was never resumed"


@given(st.integers(0, 2**32 - 1))
def test_the_order_of_records_and_files_does_not_matter(seed: int) -> None:
    dice = random.Random(seed)
    sent_s, records, from_s = 0.0, list[UsageRecord](), 0.0
    for connection in range(dice.randint(1, 5)):
        begun_s = max(from_s, sent_s)
        for _ in range(dice.randint(1, 4)):
            begun_s += dice.uniform(0.0, 3_000.0)
            records.append(part(begun_s, begun_s, from_s=from_s, request_id=f"{connection}"))
        sent_s = max(sent_s, begun_s)
        from_s = dice.uniform(0.0, sent_s)  # of the last ticket
    expected = totals(records, "day")
    assert sum(figures[1] for figures in expected.values()) == pytest.approx(sent_s, abs=1e-4)
    dice.shuffle(records)
    doubled = records + records[: dice.randint(0, len(records))]
    assert totals(doubled, "day") == expected


def test_audio_counts_on_the_day_on_which_it_was_received() -> None:
    midnight_s = 12 * 3_600
    long = [part(midnight_s - 30, 100.0), part(midnight_s + 30, 160.0), part(midnight_s + 40, 170.0, "close_stream")]
    days = {("2026-11-27",): (1, 100.0, 100.0, 0), ("2026-11-28",): (0, 70.0, 70.0, 0)}
    assert totals(long, "day") == days
    second = datetime(2026, 11, 28, tzinfo=UTC)
    assert totals(long, "day", since=second) == {("2026-11-28",): days["2026-11-28",]}
    assert totals(long, "day", until=second) == {("2026-11-27",): days["2026-11-27",]}
    assert totals(long, "month") == {("2026-11",): (1, 170.0, 170.0, 0)}
    hours = {"since": datetime(2026, 11, 28, 0, tzinfo=UTC), "until": datetime(2026, 11, 28, 1, tzinfo=UTC)}
    assert totals(long, "kind", **hours) == {("live",): (0, 70.0, 70.0, 0)}


def test_groups_are_combined_and_a_key_without_a_name_is_its_id() -> None:
    records = [
        record(1),
        record(2, model="other", kind="upload", reason="completed"),
        record(3, key="", key_id="abc"),
        record(4, key="", key_id="", protocol="vosk"),
    ]
    assert totals(records, "key,model") == {
        ("", "tutti"): (1, 1.5, 3.0, 0),
        ("abc", "tutti"): (1, 1.5, 3.0, 0),
        ("bank", "other"): (1, 1.5, 3.0, 0),
        ("bank", "tutti"): (1, 1.5, 3.0, 0),
    }
    assert set(totals(records, "protocol,kind,reason,language,key_id")) == {
        ("deepgram", "live", "close_stream", "en", "id"),
        ("deepgram", "upload", "completed", "en", "id"),
        ("deepgram", "live", "close_stream", "en", "abc"),
        ("vosk", "live", "close_stream", "en", ""),
    }
    assert total_of({}).streams == 0


# The command


def ran(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["usage", *arguments], env={"COLUMNS": "200"})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files of two servers; one was killed while it wrote its last line."""
    path = tmp_path / "records"
    path.mkdir()
    lines = [line_of(record(1)), line_of(record(2, key="shop")), line_of(record(3))[:-40]]
    (path / "usage-a.jsonl").write_bytes(b"".join(lines))
    (path / "usage-b.jsonl").write_bytes(line_of(record(4, end=START + timedelta(days=1))))
    return path


def test_the_command_offers_the_groups_that_there_are() -> None:
    assert tuple(GROUPS) == OFFERED


def test_a_table_says_what_does_not_count(folder: Path) -> None:
    done = ran(str(folder))
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "key    streams  seconds  channel seconds  unfinished",
        "bank         2      3.0              6.0           0",
        "shop         1      1.5              3.0           0",
        "total        3      4.5              9.0           0",
    ]
    assert "usage-a.jsonl: the last line is incomplete and does not count" in done.stderr


def test_csv_and_json_have_the_same_figures(folder: Path) -> None:
    by = ["--by", "key,day"]
    rows = list(csv.reader(io.StringIO(ran(str(folder), *by, "--csv").stdout)))
    assert rows == [
        ["key", "day", "streams", "seconds", "channel_seconds", "unfinished"],
        ["bank", "2026-11-27", "2", "1.5", "3.0", "0"],
        ["bank", "2026-11-28", "0", "1.5", "3.0", "0"],
        ["shop", "2026-11-27", "1", "1.5", "3.0", "0"],
    ]
    found = json.loads(ran(str(folder), str(folder / "usage-a.jsonl"), *by, "--json").stdout.splitlines()[-1])
    assert [[str(value) for value in row.values()] for row in found["rows"]] == rows[1:]
    assert found["total"] == {"streams": 3, "seconds": 4.5, "channel_seconds": 9.0, "unfinished": 0}
    one_day = json.loads(ran(str(folder), "--since", "2026-11-28", "--until", "2026-11-29T00", "--json").stdout)
    assert (one_day["since"], one_day["total"]["seconds"]) == ("2026-11-28", 1.5)


def test_a_name_that_a_spreadsheet_would_compute_is_quoted_in_csv(tmp_path: Path) -> None:
    file = tmp_path / "usage-a.jsonl"
    file.write_bytes(line_of(record(1, key="=cmd|' /C calc'!A0")))
    (_, row) = csv.reader(io.StringIO(ran(str(file), "--csv").stdout))
    assert row[0] == "'=cmd|' /C calc'!A0"


def test_compressed_files_and_a_byte_order_mark_are_read(tmp_path: Path) -> None:
    (tmp_path / "usage-a.jsonl.gz").write_bytes(gzip.compress(line_of(record(1))))
    (tmp_path / "usage-b.jsonl").write_bytes(BOM_UTF8 + line_of(record(2)))
    done = ran(str(tmp_path / "usage-a.jsonl.gz"), str(tmp_path / "usage-b.jsonl"), "--json")
    assert json.loads(done.stdout)["total"]["streams"] == 2


@pytest.mark.parametrize("times", [{"to_s": (1e308,)}, {"from_s": 5.0, "to_s": (4.0,)}, {"to_s": (4.0, -1.0)}])
def test_a_record_with_impossible_times_is_named(tmp_path: Path, times: Any) -> None:
    file = tmp_path / "usage-a.jsonl"
    file.write_bytes(line_of(record(1)) + line_of(record(2, **times)))
    done = ran(str(file))
    assert done.exit_code == 1
    assert "usage-a.jsonl:2: not a usage record: from_s " in done.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["--by", "customer"], 2, "'--by': must be one or more of key, "),
        (["--by", "key,key"], 2, "'--by': must be one or more of key, "),
        (["--since", "yesterday"], 2, "'--since': must be a day such as 2026-11-01"),
        (["--since", "2026-11-02", "--until", "2026-11-02"], 2, "--until 2026-11-02: must be after --since 2026-11-02"),
        (["--csv", "--json"], 2, "--csv: cannot be combined with --json"),
        (["absent.jsonl"], 1, "absent.jsonl: No such file"),
    ],
)
def test_what_is_wrong_is_named(folder: Path, arguments: list[str], status: int, text: str) -> None:
    done = ran(str(folder), *arguments)
    assert done.exit_code == status
    assert text in done.stderr


def test_a_folder_without_records_and_a_damaged_line_are_errors(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = ran(str(tmp_path / "empty"))
    assert (done.exit_code, "empty: contains no usage file (usage-*.jsonl)" in done.stderr) == (1, True)
    (folder / "usage-b.jsonl").write_bytes(line_of(record(4)) + b"{\n" + line_of(record(5)))
    done = ran(str(folder))
    assert done.exit_code == 1
    assert "usage-b.jsonl:2: not a usage record; remove the line, or leave out the file" in done.stderr
