"""`python -m loadtest.benchmarks.peers`: tutti and other servers with the same weights, machine and load.

Finds the most live streams that each server sustains within the latency objective, and writes one report.
"""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from loadtest.benchmarks.peers import bench, report
from loadtest.benchmarks.peers.contestants import PUBLISHED, Contestant, chosen
from loadtest.benchmarks.peers.findings import Findings, Probe
from loadtest.errors import BadManifest, ServerNotReady
from loadtest.program import EXIT_INTERRUPTED, EXIT_OK, RESULTS, ResultName, carry_out
from loadtest.reports import environment, pages
from loadtest.served import ROOT

PACKAGES = ("fastapi", "uvicorn", "torch", "ray", "mosec", "aiohttp", "sherpa-onnx", "onnx", "onnxruntime")
EXPORT_WITHIN_S = 300.0


def main(
    *,
    peers: Annotated[str, typer.Option(help="Who is measured, with commas; default: ours and every peer.")] = "",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds over all of them.")] = 3,
    seconds: Annotated[float, typer.Option(help="Measured seconds of each level.")] = 8.0,
    stream_s: Annotated[float, typer.Option(help="Seconds of a stream; the next one takes its place.")] = 6.0,
    objective_ms: Annotated[float, typer.Option(help="p98 chunk latency that a level must keep.")] = 100.0,
    common: Annotated[int, typer.Option(help="Streams of the level that all are compared at; 0: none.")] = 10,
    seed: Annotated[int, typer.Option(help="Decides starts and recordings.")] = 1,
    keep: Annotated[bool, typer.Option(help="Add to the levels of the earlier runs of this name.")] = False,
    name: ResultName = "peers",
    folder: Annotated[Path, typer.Option()] = RESULTS,
    onnx: Annotated[Path, typer.Option(help="A published model; or where sherpa's is written.")] = ROOT
    / "build"
    / "onnx",
) -> None:
    """Compare; the last line of stdout is the JSON document."""
    plan = bench.Plan(rounds, seconds, stream_s, objective_ms, common, seed, onnx)
    console = Console(stderr=True)

    def work(command: str) -> int:
        contestants = chosen(peers)
        probes, code = list(read(folder / f"{name}.json") if keep else ()), EXIT_OK
        _export(contestants, onnx)
        try:
            probes.extend(bench.run(plan, contestants, tuple(probes), partial(console.print, highlight=False)))
        except KeyboardInterrupt:  # the levels before it are in the list
            code = EXIT_INTERRUPTED
        if probes:
            place, versions = environment.describe(seed), environment.versions(PACKAGES)
            findings = Findings(command, objective_ms, seconds, stream_s, common, versions, place, tuple(probes))
            pages.show_written(findings, report.write(findings, folder, name))
        return code

    carry_out("loadtest.benchmarks.peers", work)


def read(path: Path) -> tuple[Probe, ...]:
    """The levels of an earlier run; none if there was none. Raises: BadManifest."""
    if not path.exists():
        return ()
    try:
        return msgspec.json.decode(path.read_bytes(), type=Findings, strict=False).probes
    except msgspec.DecodeError as error:
        raise BadManifest(f"{path}: not a comparison: {error}") from error


def _export(contestants: tuple[Contestant, ...], folder: Path) -> None:
    """Write the network for sherpa, in a process of its own: it takes torch. Raises: ServerNotReady."""
    if not any("{onnx}" in one.command and not one.name.endswith(PUBLISHED) for one in contestants):
        return
    try:
        subprocess.run(  # noqa: S603 - our own command
            [sys.executable, "-m", "model.export_onnx", str(folder), "--int8"],
            cwd=ROOT,
            check=True,
            capture_output=True,
            timeout=EXPORT_WITHIN_S,
        )
    except subprocess.SubprocessError as error:
        raise ServerNotReady(f"the network could not be exported: {error}") from error


if __name__ == "__main__":
    typer.run(main)
