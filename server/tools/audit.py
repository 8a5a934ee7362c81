"""Replay a share of stored streams: receipts and audio in a folder, NAME.vcon.json or NAME.jsonl next to NAME.wav."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from server.receipts.recorded import BadReceipt, Recorded, read_recorded
from server.receipts.verification import Difference
from server.tools.replay import Replayer

RECEIPTS = (".vcon.json", ".vcon", ".jsonl")


@dataclass(frozen=True, slots=True)
class Stored:
    """One stream: its receipts and its audio."""

    name: str
    recorded: Recorded
    audio: Path


@dataclass(frozen=True, slots=True)
class Finding:
    """The stream that differs first."""

    name: str
    differences: tuple[Difference, ...]


def read_stored(receipts: Path) -> Recorded:
    """Read one file of receipts. Raises: BadReceipt, OSError."""
    try:
        return read_recorded(receipts.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError as error:
        raise BadReceipt(f"{receipts}: not UTF-8 text; save it as UTF-8") from error
    except BadReceipt as error:
        raise BadReceipt(f"{receipts}: {error}") from error


def stored_in(folder: Path, day: str) -> Iterator[Stored]:
    """Yield the streams that began on a day, such as 2026-11-27 in UTC; "" for all. Raises: BadReceipt, OSError."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    stems: dict[Path, list[Path]] = {}
    for path in files:
        if _stem(path) is None:
            stems.setdefault(path.with_suffix(""), []).append(path)
    for path in files:
        stem = _stem(path)
        if stem is None:
            continue
        recorded = read_stored(path)
        if not recorded.first.created.startswith(day):
            continue
        audio = stems.get(path.with_name(stem), [])
        if len(audio) != 1:
            raise BadReceipt(f"{path}: {len(audio)} files of audio named {stem}.*; there must be one")
        yield Stored(path.name, recorded, audio[0])


def _stem(path: Path) -> str | None:
    """Return the name without the suffix of receipts, None for other files."""
    return next((path.name.removesuffix(suffix) for suffix in RECEIPTS if path.name.endswith(suffix)), None)


def share_of(stored: Sequence[Stored], share: float, seed: int) -> list[Stored]:
    """Return a random share of the streams, at least one if there are any, in their order."""
    count = min(len(stored), max(1, round(share * len(stored))))
    chosen = sorted(random.Random(seed).sample(range(len(stored)), count))
    return [stored[index] for index in chosen]


async def audit(replayer: Replayer, streams: Sequence[Stored], concurrency: int) -> Finding | None:
    """Replay streams, some at a time; return the first in their order that differs.

    Raises: BadReceipt, ModelError, OSError, SettingsError.
    """
    for begin in range(0, len(streams), concurrency):
        group = streams[begin : begin + concurrency]
        found = await asyncio.gather(*(replayer.differences(each.recorded, each.audio) for each in group))
        for each, differences in zip(group, found, strict=True):
            if differences:
                return Finding(each.name, tuple(differences))
    return None
