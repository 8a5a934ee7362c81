"""The options of `tutti calibrate` and `tutti plan`. Everything of weight is imported when a command runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from batching.simulation.calibration import Calibration

EXIT_FAILED = 1


def calibrate(
    *,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("build/calibration.json"),
    decoder: Annotated[str, typer.Option(help="greedy or beam, as the server to be planned for.")] = "greedy",
    threads: Annotated[int, typer.Option(help="Compute threads. Default: all cores but one.")] = 0,
    model: Annotated[Path | None, typer.Option(help="A .safetensors checkpoint. Default: the shipped model.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    precision: Annotated[str, typer.Option(help="auto, fp32, bf16, fp16 (GPU) or int8 (CPU).")] = "auto",
) -> None:
    """Measure batch times and the server's own costs on this machine, for `tutti plan`; the machine should be idle."""
    from loadtest.planning.calibrate import calibrate as measure
    from loadtest.planning.plan_report import calibration_lines
    from model.errors import ModelError

    try:
        found = measure(
            model_path=model, device=device, precision=precision, threads=threads, decoder=decoder, tell=_progress
        )
        found.save(out)
    except (ModelError, OSError, RuntimeError) as error:
        typer.echo(f"tutti: {error}", err=True)
        raise typer.Exit(EXIT_FAILED) from error
    typer.echo("\n".join([*calibration_lines(found), f"wrote {out}"]))


def plan(
    *,
    streams: Annotated[int, typer.Option(help="Live streams to be carried, by all replicas together.", min=1)] = 1_000,
    slo_ms: Annotated[float, typer.Option(help="p98 chunk latency not to be exceeded, ms.", min=0.1)] = 100.0,
    calibration: Annotated[Path | None, typer.Option(help="From `tutti calibrate`. Default: the shipped one.")] = None,
    policy: Annotated[str, typer.Option(help="eager, deadline or single.")] = "eager",
    max_batch: Annotated[int, typer.Option(help="Rows of a batch, at most.", min=1)] = 128,
    latency_budget_ms: Annotated[float, typer.Option(help="Deadline of a step, ms, for --policy deadline.")] = 100.0,
    headroom: Annotated[float, typer.Option(help="Share of a replica that stays free.", min=0.0, max=0.9)] = 0.2,
    levels: Annotated[
        str | None, typer.Option(help="Simulate these numbers of streams on one replica instead.")
    ] = None,
    seconds: Annotated[float | None, typer.Option(help="Seconds to simulate at each of --levels.", min=1.0)] = None,
    stream_s: Annotated[float, typer.Option(help="Mean length of a stream, seconds.", min=0.1)] = 60.0,
    client_us: Annotated[
        str | None, typer.Option(help="A generator on the same machine: µs to send, to receive, of its clock's tick.")
    ] = None,
    deep_speech: Annotated[
        bool, typer.Option("--deep-speech", help="Deep Speech 2's deployment: 10, 20 and 30 streams.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document as the last line.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw latency and batch size against load into this PNG.")] = None,
    seed: Annotated[int, typer.Option(help="Decides starts and batch times.")] = 1,
) -> None:
    """How many replicas carry so many streams within a latency, by simulation with the real batcher.

    The calibration that ships with the program is of one machine, which is named: calibrate on your own.
    """
    from batching.batcher import Policy
    from batching.simulation.calibration import DEEP_SPEECH_STREAMS, deep_speech_2
    from batching.simulation.planning import Serving
    from loadtest.planning import plan as plan_runs

    try:
        device = deep_speech_2() if deep_speech else _calibration(calibration)
        serving = Serving(Policy(policy), max_batch, latency_budget_ms / 1e3, stream_s)
        loads = plan_runs.parse_levels(levels) if levels else DEEP_SPEECH_STREAMS if deep_speech else None
        client = plan_runs.parse_client(client_us)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    if loads is None:
        found = plan_runs.answer(device, serving, streams=streams, slo_s=slo_ms / 1e3, headroom=headroom, seed=seed)
    else:
        policies = plan_runs.COMPARED if deep_speech else (serving.policy,)
        found = plan_runs.predict(device, serving, policies, loads, seconds=seconds, client=client, seed=seed)
    typer.echo("\n".join(found.lines), err=as_json)
    if plot is not None:
        _draw(device, serving, loads, plot, seed)
    if as_json:
        typer.echo(found.document)
    raise typer.Exit(0 if found.possible else EXIT_FAILED)


def _calibration(path: Path | None) -> Calibration:
    from batching.simulation.calibration import Calibration, shipped

    return shipped() if path is None else Calibration.load(path)


def _draw(device: Calibration, serving: object, loads: tuple[int, ...] | None, path: Path, seed: int) -> None:
    from batching.simulation.planning import Serving

    assert isinstance(serving, Serving)
    try:
        from loadtest.planning.plan_plot import draw
    except ImportError as error:
        typer.echo("tutti: a plot needs matplotlib: pip install 'tutti[loadtest]'", err=True)
        raise typer.Exit(EXIT_FAILED) from error
    draw(device, serving, path, loads=loads, seed=seed)
    typer.echo(f"wrote {path}", err=True)


def _progress(line: str) -> None:
    typer.echo(line, err=True)
