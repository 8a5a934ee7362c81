"""`python -m tutti_asr_lab.benchmarks.peers`: tutti and other servers with the same weights, machine and load.

Finds the highest number of live streams that each server sustains within the latency objective, and writes a report.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from loadtest.errors import BadManifest, ServerNotReady
from loadtest.program import EXIT_INTERRUPTED, EXIT_OK, RESULTS, ResultName, carry_out
from loadtest.reports import environment, machine, pages
from loadtest.served import ROOT
from tutti_asr_lab.benchmarks.peers import bench, report
from tutti_asr_lab.benchmarks.peers.contestants import Contestant, Findings, Probe, chosen

PACKAGES = ("uvicorn", "torch", "sherpa-onnx", "onnx", "onnxruntime")
PREPARED_WITHIN_S = 300.0


def main(
    *,
    peers: Annotated[str, typer.Option(help="Servers to measure, with commas. Default: tutti and all peers.")] = "",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds over all servers.")] = 3,
    seconds: Annotated[float, typer.Option(help="Seconds measured at each level.")] = 8.0,
    stream_s: Annotated[float, typer.Option(help="Mean length of a stream, seconds; a new one follows.")] = 6.0,
    objective_ms: Annotated[float, typer.Option(help="Limit of the p98 chunk latency, ms.")] = 100.0,
    common: Annotated[int, typer.Option(help="Streams of a level measured for all servers; 0: none.")] = 10,
    seed: Annotated[int, typer.Option(help="Random seed for start times and recordings.")] = 1,
    keep: Annotated[bool, typer.Option(help="Add to the results of earlier runs of this name.")] = False,
    name: ResultName = "peers",
    folder: Annotated[Path, typer.Option()] = RESULTS,
    onnx: Annotated[Path, typer.Option(help="Folder of a published model, or for the exported model.")] = ROOT
    / "build"
    / "onnx",
) -> None:
    """Compare servers; the last line of stdout is the JSON document."""
    plan = bench.Plan(rounds, seconds, stream_s, objective_ms, common, seed, onnx)
    console = Console(stderr=True)

    def work(command: str) -> int:
        contestants = chosen(peers)
        probes, code = list(read(folder / f"{name}.json") if keep else ()), EXIT_OK
        _export(contestants, onnx)
        with tempfile.TemporaryDirectory() as int8:
            _quantize(contestants, onnx, Path(int8))
            measured = replace(plan, int8=Path(int8))
            try:
                probes.extend(bench.run(measured, contestants, tuple(probes), partial(console.print, highlight=False)))
            except KeyboardInterrupt:  # earlier levels are in the list
                code = EXIT_INTERRUPTED
        if probes:
            described, versions = environment.describe(seed), machine.versions(PACKAGES)
            findings = Findings(command, objective_ms, seconds, stream_s, common, versions, described, tuple(probes))
            pages.show_written(findings, report.write(findings, folder, name))
        return code

    carry_out("tutti_asr_lab.benchmarks.peers", work)


def read(path: Path) -> tuple[Probe, ...]:
    """Return the levels of an earlier run, if any. Raises: BadManifest."""
    if not path.exists():
        return ()
    try:
        return msgspec.json.decode(path.read_bytes(), type=Findings, strict=False).probes
    except msgspec.DecodeError as error:
        raise BadManifest(f"{path}: not a result file of this program: {error}") from error


def _export(contestants: tuple[Contestant, ...], folder: Path) -> None:
    """Export the network for sherpa-onnx. Raises: ServerNotReady."""
    if any("{onnx}" in one.command and not one.published for one in contestants):
        _prepare("export the network", "server.cli", "export", str(folder), "--int8")


def _quantize(contestants: tuple[Contestant, ...], source: Path, target: Path) -> None:
    """Write the published model in dynamic int8 for sherpa-onnx. Raises: ServerNotReady."""
    if any("{int8}" in one.command for one in contestants):
        module = "tutti_asr_lab.benchmarks.peers.dynamic_int8"
        _prepare(f"quantize the model in {source}", module, str(source.absolute()), str(target))


def _prepare(task: str, module: str, *arguments: str) -> None:
    """Run a module in a separate process, whose packages and memory this one does not need. Raises: ServerNotReady."""
    try:
        subprocess.run(  # noqa: S603 - this program
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            check=True,
            capture_output=True,
            timeout=PREPARED_WITHIN_S,
        )
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip().splitlines()
        raise ServerNotReady(f"cannot {task}: {said[-1] if said else error}") from error
    except subprocess.SubprocessError as error:
        raise ServerNotReady(f"cannot {task}: {error}") from error


if __name__ == "__main__":
    typer.run(main)
