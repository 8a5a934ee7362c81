"""pocketsphinx, with the English model and language model of its own wheel, over the same recordings as we are.

`python -m loadtest.pocketsphinx --manifest …` writes `loadtest/results/pocketsphinx.json` and `.md`. Owns the run; the
same code reads the audio and counts the errors as for `tutti evaluate`.
"""

from __future__ import annotations

import importlib
import re
import shlex
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from loadtest import environment
from loadtest.error_rates import Peer, by_source_table, pooled, read_kept, read_ours, write
from loadtest.errors import BadSettings, LoadTestError, PeerMissing
from loadtest.measurement.run import EXIT_BAD, EXIT_INTERRUPTED
from model.audio import read_pcm
from model.errors import ModelError
from model.manifest import Utterance, read_manifests
from model.scoring import by_source, report

RESULTS = Path(__file__).parent / "results"
NAME = "pocketsphinx"
RATE = 16_000
FILES_AT_A_TIME = 8  # handed to a process at once: few, so that no process is left with much at the end
_NOT_OURS = re.compile(r"[^a-z' ]")
_state: dict[str, Any] = {}  # of a worker process: its decoder


def require() -> None:
    """Raises: PeerMissing."""
    try:
        importlib.import_module("pocketsphinx")
    except ImportError as error:
        raise PeerMissing(
            "pocketsphinx is not installed, so there is nothing to compare with: pip install pocketsphinx==5.1.1"
        ) from error


def spelled(text: str) -> str:
    """The text in the letters that references are written in: `mr.` becomes `mr`, `well-known` two words."""
    return " ".join(_NOT_OURS.sub("", text.lower().replace("-", " ")).split())


def transcribe(utterances: Sequence[Utterance], processes: int) -> list[str]:
    """What pocketsphinx hears in each recording, each as if it were the first.

    Its model normalises by the cepstral mean of the whole recording, and its features begin anew for each, without the
    noise of the last one, so that neither the order of the recordings nor the number of processes changes a text.
    """
    pool = ProcessPoolExecutor(processes, get_context("spawn"), _load)
    try:
        return list(pool.map(_hear, [u.audio for u in utterances], chunksize=FILES_AT_A_TIME))
    finally:
        pool.shutdown(cancel_futures=True)


def _load() -> None:
    _state["decoder"] = importlib.import_module("pocketsphinx").Decoder(samprate=RATE, loglevel="FATAL")


def _hear(path: Path) -> str:
    decoder = _state["decoder"]
    decoder.reinit_feat()
    decoder.start_utt()
    decoder.process_raw(read_pcm(path, RATE).tobytes(), full_utt=True)
    decoder.end_utt()
    heard = decoder.hyp()
    return spelled(heard.hypstr) if heard is not None else ""


def measure(manifests: Sequence[Path], processes: int, ours: Path | None, command: str) -> Peer:
    """Run it over the manifests. Raises: PeerMissing, ManifestError, BadManifest for our figures."""
    require()
    beside = read_ours(ours) if ours is not None else {}
    utterances = read_manifests(manifests)
    began_s = time.monotonic()
    texts = transcribe(utterances, processes)
    elapsed_s = time.monotonic() - began_s
    rows = [(u.source, u.text, text) for u, text in zip(utterances, texts, strict=True)]
    audio_s = sum(u.duration_s for u in utterances)
    return Peer(
        name=NAME,
        command=command,
        settings={"samprate": RATE, "processes": processes},
        rates=pooled(report(by_source(rows))),
        real_time_factor=round(elapsed_s * processes / audio_s, 4) if audio_s else None,
        ours=beside,
        environment=environment.describe(0),
    )


def main(
    *,
    manifest: Annotated[list[Path] | None, typer.Option(help="JSON lines with audio and text; repeatable.")] = None,
    kept: Annotated[bool, typer.Option("--kept", help="Do not run it: take the kept result, with new --ours.")] = False,
    ours: Annotated[Path | None, typer.Option(help="What `tutti evaluate --json` printed, to stand beside it.")] = None,
    processes: Annotated[int, typer.Option(help="Recordings at a time.", min=1)] = 2,
    folder: Annotated[Path, typer.Option(help="Where pocketsphinx.json and .md are written.")] = RESULTS,
) -> None:
    """Word error rates of pocketsphinx by source."""
    console = Console(stderr=True)
    try:
        if kept == bool(manifest):
            raise BadSettings("either --manifest, to run it, or --kept, for the result of an earlier run")
        command = shlex.join(["python", "-m", "loadtest.pocketsphinx", *sys.argv[1:]])
        peer = read_kept(folder, NAME, ours) if kept else measure(manifest or [], processes, ours, command)
    except (LoadTestError, ModelError) as error:
        console.print(f"pocketsphinx: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(EXIT_BAD) from None
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    console.print(by_source_table(peer))
    for path in write(peer, folder):
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)
    typer.echo(peer.encoded())


if __name__ == "__main__":
    typer.run(main)
