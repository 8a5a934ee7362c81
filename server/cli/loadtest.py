"""`tutti loadtest`, `demo` and `ceiling`: load a server, show it at work, measure this machine."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from server.cli.errors import bad_option, refuse, refuse_ignored
from server.cli.options import (
    DeviceOption,
    JsonOption,
    KeyOption,
    ModelOption,
    PrecisionOption,
    ThreadsOption,
    one_of,
    server_url,
    settings_from,
)

DEFAULT_STREAMS = "10,50,100"
NOT_OF_RULERS = ("seconds", "plot", "policy_label", "stream_seconds", "churn", "retry", "uploads")
ONLY_OF_RULERS = ("recordings", "per_connection", "as_csv")


def loadtest(
    context: typer.Context,
    *,
    url: Annotated[
        str, typer.Option(help="Server to load. Only load servers that you operate.", callback=server_url)
    ] = "ws://127.0.0.1:8080",
    ruler: Annotated[
        str | None,
        typer.Option(
            help="Measure a figure of voice agents instead: ttfs, word-delay, turns, early-end (docs/voice-agents.md).",
            callback=one_of("ttfs", "word-delay", "turns", "early-end"),
        ),
    ] = None,
    streams: Annotated[
        str | None,
        typer.Option(help="Numbers of live streams, with commas. Default: 10,50,100; with --ruler 1,100,300."),
    ] = None,
    recordings: Annotated[
        int | None, typer.Option(help="With --ruler: measured recordings at each level, at least. Default: 100.")
    ] = None,
    per_connection: Annotated[
        int,
        typer.Option(
            help="With --ruler ttfs: recordings on each connection, with a second of silence between them, as in a "
            "conversation.",
            min=1,
        ),
    ] = 1,
    seconds: Annotated[float, typer.Option(help="Seconds measured at each level.", min=0.1, max=3_600)] = 20.0,
    manifest: Annotated[
        Path | None,
        typer.Option(help="Recordings as JSON lines, optionally with `language`. Default: the shipped recordings."),
    ] = None,
    as_json: JsonOption = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="With --ruler: print comma-separated values.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Plot percentiles and distributions to this PNG file.")] = None,
    seed: Annotated[int, typer.Option(help="Random seed for start times and recordings.")] = 1,
    api_key: KeyOption = None,
    policy_label: Annotated[str, typer.Option(help="Label of the run in tables and plots.")] = "",
    stream_seconds: Annotated[
        float | None, typer.Option(help="Approximate length of a stream, seconds. Default: one recording.", min=0.5)
    ] = None,
    churn: Annotated[bool, typer.Option("--churn", help="Random arrival times and stream lengths.")] = False,
    retry: Annotated[
        bool, typer.Option("--retry", help="Refused streams retry after the server's Retry-After.")
    ] = False,
    uploads: Annotated[int, typer.Option(help="Concurrent uploads alongside the live streams.", min=0)] = 0,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Also break each result's latency into its parts; with --ruler: ttfs only."),
    ] = False,
) -> None:
    """Load a server with open-loop live streams in real time, check every transcript, report latencies."""
    from loadtest.errors import BadSettings
    from loadtest.generator.settings import Arrivals, LoadSettings
    from loadtest.measurement.run import run_loadtest
    from loadtest.rulers.run import run_ruler
    from loadtest.rulers.settings import RECORDINGS, STREAMS, Ruler, RulerSettings

    if ruler is None:
        refuse_ignored(context, ONLY_OF_RULERS, "needs --ruler")
    else:
        refuse_ignored(context, NOT_OF_RULERS, "cannot be combined with --ruler")
    if ruler == "turns":
        refuse_ignored(context, ["as_csv"], "not available with --ruler turns; use --json")
    elif as_csv:
        refuse_ignored(context, ["as_json"], "cannot be combined with --csv; leave one of them out")
    try:
        if ruler is not None:
            of_ruler = RulerSettings(
                url=url,
                ruler=Ruler(ruler),
                streams=STREAMS if streams is None else _levels(streams),
                recordings=RECORDINGS if recordings is None else recordings,
                manifest=manifest,
                per_connection=per_connection,
                seed=seed,
                api_key=api_key,
                explain=explain,
            )
            raise typer.Exit(run_ruler(of_ruler, as_json=as_json, as_csv=as_csv))
        settings = LoadSettings(
            url=url,
            streams=_levels(streams or DEFAULT_STREAMS),
            seconds=seconds,
            manifest=manifest,
            seed=seed,
            api_key=api_key,
            policy_label=policy_label,
            arrivals=Arrivals.CHURN if churn else Arrivals.FIXED,
            stream_s=stream_seconds,
            retry=retry,
            uploads=uploads,
            split=explain,
        )
    except BadSettings as error:
        refuse(error)
    raise typer.Exit(run_loadtest(settings, as_json=as_json, plot_path=plot))


def _levels(streams: str) -> tuple[int, ...]:
    from loadtest.errors import BadSettings
    from loadtest.generator.settings import parse_streams

    try:
        return parse_streams(streams)
    except BadSettings as error:
        raise bad_option("--streams", streams, str(error)) from error


def demo() -> None:
    """Start a server, stream a shipped recording in real time, and show partials, the final text and latencies."""
    from rich.console import Console

    from loadtest.demo import run_demo

    raise typer.Exit(run_demo(Console()))


def ceiling(
    *,
    as_json: JsonOption = False,
    threads: ThreadsOption,
    model: ModelOption = None,
    device: DeviceOption,
    precision: PrecisionOption,
) -> None:
    """Time the bare model step by batch size: the upper bound of a server on this machine."""
    from loadtest.measurement.engine_times import measure_engine
    from model.acoustic import load_model
    from model.evaluation.ceiling import measure

    rewriting = settings_from({}).graph_rewriting
    loaded = load_model(model, device=device, precision=precision, threads=threads, rewriting=rewriting)
    figures = measure(loaded)
    times = measure_engine(loaded.slots, list(figures.step_ms), batches=20)
    engine_ms = {rows: round(cycle_s * 1e3, 3) for rows, cycle_s in times.cycle_s.items()}
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(figures) | {"engine_ms": engine_ms}))
        return
    typer.echo(f"{figures.precision}, {figures.threads} compute threads; bare step, median:")
    for rows, ms in figures.step_ms.items():
        typer.echo(f"  batch {rows:4d}  {ms:8.2f} ms  = {rows * figures.step_audio_ms / ms:7.0f} live streams")
    if figures.share is not None:
        typer.echo(f"products: {figures.step_gflops:.0f} of {figures.product_gflops:.0f} GFLOP/s ({figures.share:.0%})")
    if figures.read_ns is not None:
        where = "from the caches" if figures.in_caches else "from memory, so steps are slow"
        typer.echo(f"a read of the weights: {figures.read_ns:.0f} ns, {where}")
    typer.echo("engine, of the bare step's rate, by batch:")
    typer.echo("  " + ", ".join(f"{rows}: {figures.step_ms[rows] / ms:.0%}" for rows, ms in engine_ms.items()))
