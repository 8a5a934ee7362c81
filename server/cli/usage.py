"""`tutti usage`: add up the usage records of any number of servers."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from server.cli.errors import complain, fail, refuse
from server.cli.options import JsonOption

if TYPE_CHECKING:
    from server.usage.totals import Total

FIGURES = ("streams", "seconds", "channel_seconds", "unfinished")
GROUPS = ("key", "key_id", "day", "month", "model", "language", "protocol", "kind", "reason")
INCOMPLETE = "the last line is incomplete and does not count; its server was killed, or is writing"


def _hour(value: str | None) -> str | None:
    """Check a day or a whole hour; used as an option's `callback`."""
    if value is not None:
        _time_of(value)
    return value


def _time_of(value: str) -> datetime:
    """Return a day or a whole hour in UTC. Raises: typer.BadParameter."""
    for form in ("%Y-%m-%d", "%Y-%m-%dT%H"):
        try:
            return datetime.strptime(value, form).replace(tzinfo=UTC)
        except ValueError:
            continue
    raise typer.BadParameter("must be a day such as 2026-11-01, or an hour such as 2026-11-01T08, in UTC")


def _groups(value: str) -> str:
    """Check the names of groups; used as an option's `callback`."""
    names = value.split(",")
    if not set(names) <= set(GROUPS) or len(set(names)) < len(names):
        raise typer.BadParameter(f"must be one or more of {', '.join(GROUPS)}, with commas, each once")
    return value


def usage(
    paths: Annotated[
        list[Path], typer.Argument(help="Usage files, and folders of them (TUTTI_USAGE_LOG), of all servers.")
    ],
    *,
    since: Annotated[
        str | None, typer.Option(help="First day that counts, 2026-11-01, or hour, 2026-11-01T08. UTC.", callback=_hour)
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="First day or hour that does not count any more. UTC.", callback=_hour)
    ] = None,
    by: Annotated[
        str, typer.Option(help=f"Group by one or more of {', '.join(GROUPS)}; with commas.", callback=_groups)
    ] = "key",
    as_csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Add up usage records: streams and uploads, seconds of calls, seconds over all channels.

    A call with two channels counts once as a stream and in seconds, and twice in channel seconds.
    """
    if as_csv and as_json:
        refuse("--csv: cannot be combined with --json; leave one of them out")
    from server.usage.totals import Totals, UsageError, read_records, total_of, usage_files

    names = by.split(",")
    first, end = (None if text is None else _time_of(text) for text in (since, until))
    if first is not None and end is not None and first >= end:
        refuse(f"--until {until}: must be after --since {since}")
    totals = Totals(names, first, end)
    try:
        for path in usage_files(paths):
            for record in read_records(path, lambda cut: complain(f"{cut}: {INCOMPLETE}")):
                totals.add(record)
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}")
    except UsageError as error:
        fail(error)
    rows = totals.rows()
    if as_csv:
        typer.echo(_csv(names, rows), nl=False)
    elif as_json:
        typer.echo(_json(names, rows, total_of(rows), since, until))
    else:
        typer.echo(_table(names, rows, total_of(rows)))


def _figures(total: Total) -> tuple[Any, ...]:
    return total.streams, round(total.seconds, 3), round(total.channel_seconds, 3), total.unfinished


def _csv(names: Sequence[str], rows: Mapping[tuple[str, ...], Total]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*names, *FIGURES])
    writer.writerows([*map(_cell, group), *_figures(total)] for group, total in rows.items())
    return text.getvalue()


def _cell(text: str) -> str:
    """Return a text that no spreadsheet takes for a formula. Source: OWASP, CSV Injection."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def _json(
    names: Sequence[str], rows: Mapping[tuple[str, ...], Total], whole: Total, since: str | None, until: str | None
) -> str:
    found = [
        dict(zip(names, group, strict=True)) | dict(zip(FIGURES, _figures(total), strict=True))
        for group, total in rows.items()
    ]
    total = dict(zip(FIGURES, _figures(whole), strict=True))
    return json.dumps({"since": since, "until": until, "by": list(names), "rows": found, "total": total})


def _table(names: Sequence[str], rows: Mapping[tuple[str, ...], Total], whole: Total) -> str:
    body = [[*(text or "-" for text in group), *_shown(total)] for group, total in rows.items()]
    lines = [[*names, *(figure.replace("_", " ") for figure in FIGURES)], *body]
    lines.append(["total", *("" for _ in names[1:]), *_shown(whole)])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    texts = len(names)
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < texts else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _shown(total: Total) -> tuple[str, ...]:
    streams, seconds, channel_seconds, unfinished = _figures(total)
    return f"{streams:,}", f"{seconds:,.1f}", f"{channel_seconds:,.1f}", f"{unfinished:,}"
