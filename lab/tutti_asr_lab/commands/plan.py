"""`tutti plan`: estimate replicas and cores for a load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from server.cli.errors import EXIT_FAILED, bad_option, refuse_ignored
from server.cli.options import JsonOption, default_of, one_of, same_options_as

MOST_STREAMS, MOST_MS, MOST_US = 100_000_000, 10_000.0, 10_000_000.0
"""Bounds of what can be meant: above them results are numbers without a meaning, or take hours."""

if TYPE_CHECKING:
    from tutti_asr_lab.planning.plan import Output
    from tutti_asr_lab.simulation.calibration import Calibration


def for_cores(
    *,
    cores: Annotated[
        str | None,
        typer.Option(
            help="Instead: predict front ends, engines, their threads and streams of one server on this number of "
            "cores, or of several with commas."
        ),
    ] = None,
    gpu: Annotated[bool, typer.Option("--gpu", help="With --cores: the engine runs on a GPU.")] = False,
    published_us: Annotated[
        float | None,
        typer.Option(
            help="With --cores: a published model that takes this many µs a row on one thread, by the 32 rows of "
            "`tutti model check`.",
            min=1.0,
            max=MOST_US,
        ),
    ] = None,
    step_ms: Annotated[
        float, typer.Option(help="With --published-us: audio of a step of the model, ms.", min=1.0, max=MOST_MS)
    ] = 80.0,
) -> None:
    """Options of `tutti plan` for one server, by the cores of its machine."""


@same_options_as(for_cores)
def plan(
    context: typer.Context,
    *,
    streams: Annotated[int, typer.Option(help="Live streams, total of all replicas.", min=1, max=MOST_STREAMS)] = 1_000,
    slo_ms: Annotated[
        float, typer.Option(help="Latency target: p98 of chunk latency, ms.", min=0.1, max=MOST_MS)
    ] = 100.0,
    calibration: Annotated[
        Path | None, typer.Option(help="File of `tutti calibrate`. Default: the shipped one.")
    ] = None,
    policy: Annotated[
        str,
        typer.Option(
            help="eager or deadline.",
            default_factory=default_of("policy"),
            envvar="TUTTI_POLICY",
            callback=one_of("eager", "deadline"),
        ),
    ],
    max_batch: Annotated[
        int,
        typer.Option(
            help="Maximum streams in a batch.", min=1, default_factory=default_of("max_batch"), envvar="TUTTI_MAX_BATCH"
        ),
    ],
    latency_budget_ms: Annotated[
        float,
        typer.Option(
            help="Deadline of a step with --policy deadline, ms.",
            min=0.001,
            default_factory=default_of("latency_budget_ms"),
            envvar="TUTTI_LATENCY_BUDGET_MS",
        ),
    ],
    finals: Annotated[
        str,
        typer.Option(
            help="Of all streams: fast, context, accurate, or auto, which is context where the model has it.",
            default_factory=default_of("finals"),
            envvar="TUTTI_FINALS",
            callback=one_of("auto", "fast", "context", "accurate"),
        ),
    ],
    headroom: Annotated[
        float, typer.Option(help="Share of each replica's capacity kept free.", min=0.0, max=0.9)
    ] = 0.2,
    levels: Annotated[
        str | None, typer.Option(help="Simulate one replica with these numbers of streams, with commas, instead.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Seconds to simulate at each of --levels.", min=1.0, max=86_400.0)
    ] = None,
    stream_s: Annotated[float, typer.Option(help="Mean stream length, seconds.", min=0.1, max=86_400.0)] = 60.0,
    channels: Annotated[int, typer.Option(help="Channels of a stream: 2 for stereo calls.", min=1, max=8)] = 1,
    decoder: Annotated[
        str | None,
        typer.Option(help="Refuse a calibration of another decoder than this.", callback=one_of("greedy", "beam")),
    ] = None,
    models: Annotated[
        int,
        typer.Option(help="Models of a replica that take turns, with an equal share of the streams.", min=1, max=1_000),
    ] = 1,
    front_ends: Annotated[
        int,
        typer.Option(help="Front-end processes of a replica, each on its own core; 0 = one process.", min=0, max=1_000),
    ] = 0,
    crowd: Annotated[
        int,
        typer.Option(
            help="Streams that connect to a replica at once, in addition to the others.", min=0, max=1_000_000
        ),
    ] = 0,
    as_json: JsonOption = False,
    seed: Annotated[int, typer.Option(help="Random seed for start times and batch times.")] = 1,
    **options: Any,
) -> None:
    """Estimate the number of replicas needed for N streams at a latency target, by simulation with the real batcher.

    A stereo call with `multichannel=true` is a stream of two channels, each of which counts: --channels 2.

    The shipped calibration describes one machine, named in the output. For another machine run `tutti calibrate`.
    """
    if options["cores"] is not None or options["gpu"]:
        _plan_for_cores(context, context.params)
        return
    refuse_ignored(context, {"published_us", "step_ms"}, "needs --cores")
    if policy == "eager":
        refuse_ignored(context, {"latency_budget_ms"}, "needs --policy deadline")
    from batching.batcher import Policy
    from tutti_asr_lab.planning import plan as plan_runs
    from tutti_asr_lab.simulation.planning import Serving

    device = _calibration(calibration, decoder)
    kind = _finals(finals, device)
    serving = Serving(Policy(policy), max_batch, latency_budget_ms / 1e3, stream_s, models, front_ends, crowd, kind)
    with _named("--levels", levels):
        loads = plan_runs.parse_levels(levels) if levels else None
    if loads is None:
        refuse_ignored(context, {"seconds"}, "needs --levels")
        total = streams * channels
        found = plan_runs.answer(device, serving, streams=total, slo_s=slo_ms / 1e3, headroom=headroom, seed=seed)
    else:
        refuse_ignored(context, {"streams", "slo_ms", "headroom"}, "cannot be combined with --levels")
        total_loads = [load * channels for load in loads]
        found = plan_runs.predict(device, serving, total_loads, seconds=seconds, seed=seed)
    _print(found, as_json=as_json)
    raise typer.Exit(0 if found.possible else EXIT_FAILED)


def _plan_for_cores(context: typer.Context, options: Mapping[str, Any]) -> None:
    """Print processes and predicted streams of one server on machines. Raises: typer.BadParameter."""
    from batching.processes import ON_GPU, OWN, PUBLISHED, choose_processes
    from tutti_asr_lab.planning.front_ends import GPU_STEP_S, STEP_S, forecast, predict
    from tutti_asr_lab.planning.plan import parse_cores
    from tutti_asr_lab.simulation.calibration import shipped

    gpu, published_us = options["gpu"], options["published_us"]
    _check_cores(context, options["cores"], gpu=gpu, published=published_us is not None)
    with _named("--cores", options["cores"]):
        machines = parse_cores(options["cores"])
    chosen_by = of_model = ON_GPU if gpu else OWN
    if published_us is not None:
        chosen_by, of_model = PUBLISHED, replace(PUBLISHED, step_us=published_us)
    second_pass = {} if gpu or published_us is not None else shipped().passes
    pass_us = 1e6 * second_pass[kind].step_s if (kind := _finals(options["finals"], shipped())) in second_pass else 0.0
    layouts = [choose_processes(cores, chosen_by, max_batch=options["max_batch"]) for cores in machines]
    step_s = GPU_STEP_S if gpu else STEP_S if published_us is None else options["step_ms"] / 1e3
    found = [predict(cores, layout, of_model, step_s, pass_us) for cores, layout in zip(machines, layouts, strict=True)]
    _print(forecast(found), as_json=options["as_json"])


def _print(found: Output, *, as_json: bool) -> None:
    typer.echo("\n".join(found.lines), err=as_json)
    if as_json:
        typer.echo(found.document)


def _check_cores(context: typer.Context, cores: str | None, *, gpu: bool, published: bool) -> None:
    """Reject options that a prediction by cores would ignore. Raises: typer.BadParameter."""
    if cores is None:
        raise typer.BadParameter("--gpu: needs --cores")
    used = {"cores", "gpu", "as_json"} | (set() if gpu else {"max_batch", "published_us"})
    used |= {"step_ms"} if published else set() if gpu else {"finals"}
    others = "--cores and --gpu" if gpu else "--cores"
    if not (gpu or published):
        refuse_ignored(context, {"step_ms"}, "needs --published-us")
    refuse_ignored(context, set(context.params) - used, f"cannot be combined with {others}; leave one of them out")


def _calibration(path: Path | None, decoder: str | None) -> Calibration:
    """Return the calibration of this file, or the shipped one. Raises: typer.BadParameter."""
    from tutti_asr_lab.simulation.calibration import Calibration, shipped

    with _named("--calibration", path):
        found = Calibration.load(path) if path else shipped()
    measured = found.provenance.decoder
    if decoder is not None and decoder != measured:
        raise typer.BadParameter(
            f"--decoder {decoder}: the calibration was measured with {measured or 'an unknown decoder'}; "
            f"run tutti calibrate --decoder {decoder}, and pass its file with --calibration"
        )
    return found


def _finals(asked: str, device: Calibration) -> str:
    """Return the finals of all streams. Raises: typer.BadParameter for those whose second pass was not measured."""
    if asked == "auto":
        return "context" if "context" in device.passes else "fast"
    if asked != "fast" and asked not in device.passes:
        raise typer.BadParameter(f"--finals {asked}: the calibration has no second pass of {device.provenance.model!r}")
    return asked


@contextmanager
def _named(option: str, value: object) -> Iterator[None]:
    """Name the option whose value is wrong. Raises: typer.BadParameter."""
    try:
        yield
    except OSError as error:
        raise bad_option(option, value, error.strerror or str(error)) from error
    except ValueError as error:
        raise bad_option(option, value, str(error)) from error
