"""Error rates of pocketsphinx and tutti on the same recordings, as JSON, Markdown and a table.

It runs twice: with its own language model, and with ours, to compare only the acoustic models.
"""

from __future__ import annotations

import importlib
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from loadtest.benchmarks.pocketsphinx import words as word_files
from loadtest.errors import BadManifest, BadSettings, PeerMissing
from loadtest.program import EXIT_OK, RESULTS, carry_out
from loadtest.reports import environment, pages
from loadtest.reports.environment import Environment
from model.decoder import SHIPPED_LM
from model.errors import ModelError
from model.evaluation.scoring import by_source, report
from model.recordings import Utterance, read_manifests, read_pcm

NAME = "pocketsphinx"
WITH_OURS = f"{NAME} with our language model"
RATE = 16_000
FILES_AT_A_TIME = 8  # recordings passed to a process at once; few, to balance the load
_NOT_OURS = re.compile(r"[^a-z' ]")
_state: dict[str, Any] = {}  # decoder of a worker process


class Rates(msgspec.Struct, frozen=True):
    """Word and character error rates of a set of recordings."""

    wer: float
    cer: float
    utterances: int


class Pooled(Rates, frozen=True):
    """Error rates over all recordings, and by source."""

    by_source: dict[str, Rates]


class _Combination(Pooled, frozen=True):
    precision: str = ""
    decoder: str = ""

    @property
    def label(self) -> str:
        return " ".join(part for part in ("tutti", self.decoder, self.precision) if part)


class _Evaluation(_Combination, frozen=True):
    combinations: tuple[_Combination, ...] = ()


class WithOurs(msgspec.Struct, frozen=True):
    """Rates with our language model, and the sources of its words' pronunciations."""

    rates: Pooled
    real_time_factor: float | None
    words: word_files.Words


class Peer(msgspec.Struct, frozen=True):
    """Rates of another recognizer on the same recordings; `ours` by name of the combination."""

    name: str
    command: str
    settings: dict[str, str | int]
    rates: Pooled
    real_time_factor: float | None  # CPU seconds per second of audio, if each process has a core
    ours: dict[str, Pooled]
    environment: Environment
    with_our_language_model: WithOurs | None = None


def require() -> None:
    """Raises: PeerMissing."""
    try:
        importlib.import_module("pocketsphinx")
    except ImportError as error:
        raise PeerMissing(
            "pocketsphinx is not installed, so there is nothing to compare with: pip install pocketsphinx==5.1.1"
        ) from error


def spelled(text: str) -> str:
    """Normalize a text like the references: `mr.` becomes `mr`, `well-known` two words."""
    return " ".join(_NOT_OURS.sub("", text.lower().replace("-", " ")).split())


def transcribe(utterances: Sequence[Utterance], processes: int, options: Mapping[str, str]) -> list[str]:
    """Return the texts of pocketsphinx, independent of earlier recordings; `options` are for its decoder.

    Its features are normalized by the cepstral mean of the whole recording and reset for each, so that texts depend
    neither on the order of the recordings nor on the number of processes.
    """
    pool = ProcessPoolExecutor(processes, get_context("spawn"), _load, (options,))
    try:
        return list(pool.map(_recognize, [u.audio for u in utterances], chunksize=FILES_AT_A_TIME))
    finally:
        pool.shutdown(cancel_futures=True)


def _load(options: Mapping[str, str]) -> None:
    _state["decoder"] = importlib.import_module("pocketsphinx").Decoder(samprate=RATE, loglevel="FATAL", **options)


def _recognize(path: Path) -> str:
    decoder = _state["decoder"]
    decoder.reinit_feat()
    decoder.start_utt()
    decoder.process_raw(read_pcm(path, RATE).tobytes(), full_utt=True)
    decoder.end_utt()
    hypothesis = decoder.hyp()
    return spelled(hypothesis.hypstr) if hypothesis is not None else ""


def measure(manifests: Sequence[Path], processes: int, ours: Path | None, command: str) -> Peer:
    """Run it twice over the manifests. Raises: PeerMissing, ManifestError, TrainingError, BadManifest."""
    require()
    our_rates = read_ours(ours) if ours is not None else {}
    utterances = read_manifests(manifests)
    rates, factor = _rates(utterances, processes, {})
    with tempfile.TemporaryDirectory(prefix="tutti-") as folder:
        words = word_files.write(SHIPPED_LM, dictionary(), Path(folder))
        files = word_files.options(Path(folder))
        with_ours = WithOurs(*_rates(utterances, processes, files), words)
    return Peer(
        name=NAME,
        command=command,
        settings={"samprate": RATE, "processes": processes},
        rates=rates,
        real_time_factor=factor,
        ours=our_rates,
        environment=environment.describe(0),
        with_our_language_model=with_ours,
    )


def dictionary() -> Path:
    """Return the dictionary in its wheel."""
    return Path(importlib.import_module("pocketsphinx").get_model_path("en-us/cmudict-en-us.dict"))


def _rates(utterances: Sequence[Utterance], processes: int, options: Mapping[str, str]) -> tuple[Pooled, float | None]:
    """Return error rates, and CPU seconds per second of audio."""
    began_s = time.monotonic()
    texts = transcribe(utterances, processes, options)
    elapsed_s = time.monotonic() - began_s
    rows = [(u.source, u.text, text) for u, text in zip(utterances, texts, strict=True)]
    audio_s = sum(u.duration_s for u in utterances)
    return pooled(report(by_source(rows))), round(elapsed_s * processes / audio_s, 4) if audio_s else None


def pooled(rates: dict[str, object]) -> Pooled:
    """Return the figures of `model.evaluation.scoring.report`, typed."""
    return msgspec.convert(rates, Pooled)


def read_ours(path: Path) -> dict[str, Pooled]:
    """Return our rates by combination, from the last line of the file. Raises: BadManifest."""
    try:
        last = path.read_bytes().splitlines()[-1]
        evaluation = msgspec.json.decode(last, type=_Evaluation)
    except (OSError, IndexError, msgspec.DecodeError) as error:
        raise BadManifest(f"{path}: not the output of `tutti evaluate --json`: {error}") from error
    return {
        one.label: Pooled(one.wer, one.cer, one.utterances, one.by_source)
        for one in evaluation.combinations or (evaluation,)
    }


def read_kept(folder: Path, name: str, ours: Path | None) -> Peer:
    """Return the result of an earlier run, with new figures of ours. Raises: BadManifest."""
    path = folder / f"{name}.json"
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=Peer)
    except (OSError, msgspec.DecodeError) as error:
        raise BadManifest(f"{path}: not a result of an earlier run: {error}") from error
    return kept if ours is None else msgspec.structs.replace(kept, ours=read_ours(ours))


def rows(peer: Peer) -> list[tuple[str, ...]]:
    """Return rows: source, recordings, then the word error rates of the peer and of our combinations."""
    runs = [*_its_runs(peer).values(), *peer.ours.values()]
    found = [
        (source, str(rates.utterances), *(_wer(run.by_source.get(source)) for run in runs))
        for source, rates in peer.rates.by_source.items()
    ]
    return [*found, ("all", str(peer.rates.utterances), *(f"{run.wer:.3f}" for run in runs))]


def by_source_table(peer: Peer) -> Table:
    """Return the rows as a table for a terminal."""
    table = Table(*_headings(peer), title="word error rate", title_justify="left")
    for row in rows(peer):
        table.add_row(*row)
    return table


def markdown(peer: Peer) -> str:
    """Return the comparison as a page."""
    settings = ", ".join(f"{name} {value}" for name, value in peer.settings.items())
    lines = [f"# {peer.name} on the same recordings", "", f"`{peer.command}`", ""]
    lines += ["Word error rate, with the English acoustic and language model of its wheel.", ""]
    lines += pages.table(_headings(peer), rows(peer))
    if (with_ours := peer.with_our_language_model) is not None:
        found = with_ours.words
        lines += [
            "",
            f"Words of our language model: {found.dictionary:,} in its dictionary, {found.pronounced:,} pronounced by",
        ]
        lines += [f"espeak-ng, {found.left_out:,} omitted. Real-time factor with it: {with_ours.real_time_factor}."]
    lines += ["", f"{settings}; real-time factor {peer.real_time_factor} of one core.  "]
    return "\n".join([*lines, *pages.place_lines(peer.environment), ""])


def write(peer: Peer, folder: Path) -> list[Path]:
    """Write NAME.json and NAME.md and return their paths."""
    return pages.write(peer, markdown(peer), folder, peer.name)


def _its_runs(peer: Peer) -> dict[str, Pooled]:
    with_ours = peer.with_our_language_model
    return {peer.name: peer.rates} | ({WITH_OURS: with_ours.rates} if with_ours is not None else {})


def _headings(peer: Peer) -> tuple[str, ...]:
    return ("source", "recordings", *_its_runs(peer), *peer.ours)


def _wer(rates: Rates | None) -> str:
    return pages.number(None if rates is None else rates.wer, ".3f")


def main(
    *,
    manifest: Annotated[
        list[Path] | None, typer.Option(help="Recordings as JSON lines with `audio` and `text`; repeatable.")
    ] = None,
    kept: Annotated[bool, typer.Option("--kept", help="Use the result of an earlier run, with new --ours.")] = False,
    ours: Annotated[Path | None, typer.Option(help="Output of `tutti evaluate --json` for the comparison.")] = None,
    processes: Annotated[int, typer.Option(help="Recordings processed at once.", min=1)] = 2,
    folder: Annotated[Path, typer.Option(help="Folder for pocketsphinx.json and .md.")] = RESULTS,
) -> None:
    """Measure word error rates of pocketsphinx by source."""

    def work(command: str) -> int:
        if kept == bool(manifest):
            raise BadSettings("set either --manifest, to run it, or --kept, to use the result of an earlier run")
        peer = read_kept(folder, NAME, ours) if kept else measure(manifest or [], processes, ours, command)
        console = Console(stderr=True)
        console.print(by_source_table(peer))
        pages.show_written(peer, write(peer, folder))
        return EXIT_OK

    carry_out("loadtest.benchmarks.pocketsphinx", work, ModelError)


if __name__ == "__main__":
    typer.run(main)
