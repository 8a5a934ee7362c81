"""Error rates of another recogniser beside our own, as JSON, as Markdown and as a table.

Owns the form of such a comparison and how our own figures are read from what `tutti evaluate --json` printed. Runs
nothing.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from rich.table import Table

from loadtest.environment import Environment
from loadtest.errors import BadManifest


class Rates(msgspec.Struct, frozen=True):
    """Word and character error rates of one set of recordings."""

    wer: float
    cer: float
    utterances: int


class Pooled(msgspec.Struct, frozen=True):
    """Rates over all recordings, and by source."""

    wer: float
    cer: float
    utterances: int
    by_source: dict[str, Rates]


class _Combination(Pooled, frozen=True):
    precision: str = ""
    decoder: str = ""

    @property
    def label(self) -> str:
        return " ".join(part for part in ("tutti", self.decoder, self.precision) if part)


class _Evaluation(_Combination, frozen=True):
    combinations: tuple[_Combination, ...] = ()


class Peer(msgspec.Struct, frozen=True):
    """One other recogniser over the same recordings; `ours` by the name of the combination."""

    name: str
    command: str
    settings: dict[str, str | int]
    rates: Pooled
    real_time_factor: float | None  # processor seconds, if each process has a core, per second of audio
    ours: dict[str, Pooled]
    environment: Environment

    def encoded(self) -> str:
        """One line of JSON."""
        return msgspec.json.encode(self).decode()


def pooled(rates: dict[str, object]) -> Pooled:
    """The figures of `model.scoring.report`, typed."""
    return msgspec.convert(rates, Pooled)


def read_ours(path: Path) -> dict[str, Pooled]:
    """Our rates by combination, from the last line of the file. Raises: BadManifest."""
    try:
        last = path.read_bytes().splitlines()[-1]
        evaluation = msgspec.json.decode(last, type=_Evaluation)
    except (OSError, IndexError, msgspec.DecodeError) as error:
        raise BadManifest(f"{path}: not what `tutti evaluate --json` prints: {error}") from error
    return {
        one.label: Pooled(one.wer, one.cer, one.utterances, one.by_source)
        for one in evaluation.combinations or (evaluation,)
    }


def read_kept(folder: Path, name: str, ours: Path | None) -> Peer:
    """The result that an earlier run wrote, with our figures of now beside it. Raises: BadManifest."""
    path = folder / f"{name}.json"
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=Peer)
    except (OSError, msgspec.DecodeError) as error:
        raise BadManifest(f"{path}: no kept result: {error}") from error
    return kept if ours is None else msgspec.structs.replace(kept, ours=read_ours(ours))


def rows(peer: Peer) -> list[tuple[str, ...]]:
    """Source, recordings, then the word error rate of the peer and of each of our combinations."""
    runs = [peer.rates, *peer.ours.values()]
    found = [
        (source, str(rates.utterances), *(_wer(run.by_source.get(source)) for run in runs))
        for source, rates in peer.rates.by_source.items()
    ]
    return [*found, ("all", str(peer.rates.utterances), *(f"{run.wer:.3f}" for run in runs))]


def by_source_table(peer: Peer) -> Table:
    """The rows for a terminal."""
    table = Table(*_headings(peer), title="word error rate", title_justify="left")
    for row in rows(peer):
        table.add_row(*row)
    return table


def markdown(peer: Peer) -> str:
    """The comparison as a page."""
    place = peer.environment
    versions = ", ".join(f"{package} {version}" for package, version in place.versions.items())
    settings = ", ".join(f"{name} {value}" for name, value in peer.settings.items())
    headings = _headings(peer)
    lines = [f"# {peer.name} on the same recordings", "", f"`{peer.command}`", ""]
    lines += ["Word error rate. Its own English model and language model, as its wheel brings them.", ""]
    lines += ["| " + " | ".join(headings) + " |", "|---|" + "---:|" * (len(headings) - 1)]
    lines += ["| " + " | ".join(row) + " |" for row in rows(peer)]
    lines += ["", f"{settings}; real-time factor {peer.real_time_factor} of one core."]
    lines += [f"{place.hardware}, {place.cores} cores, Python {place.python}, {versions}.", f"{place.date}.", ""]
    return "\n".join(lines)


def write(peer: Peer, folder: Path) -> list[Path]:
    """Write NAME.json and NAME.md; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    document, page = folder / f"{peer.name}.json", folder / f"{peer.name}.md"
    document.write_bytes(msgspec.json.format(msgspec.json.encode(peer), indent=1) + b"\n")
    page.write_text(markdown(peer), encoding="utf-8")
    return [document, page]


def _headings(peer: Peer) -> tuple[str, ...]:
    return ("source", "recordings", peer.name, *peer.ours)


def _wer(rates: Rates | None) -> str:
    return "–" if rates is None else f"{rates.wer:.3f}"
