"""The `tutti` command: options in, one function of the package that does the work called, its exit code out.

Every import of weight stands inside its command, so that `tutti --help` and the clients never load torch.
"""

from __future__ import annotations

import contextlib
import json
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

# They hold options, and nothing heavy either.
from server.cli.evaluate import evaluate
from server.cli.keys import keys as keys_commands
from server.cli.lm import lm as lm_commands
from server.cli.operate import doctor, drain
from server.cli.plan import calibrate, plan

EXIT_FAILED, EXIT_INTERRUPTED = 1, 130

app = typer.Typer(
    name="tutti",
    help="Streaming speech recognition: a low-latency batching inference server, its clients and its tools.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

ModelOption = Annotated[Path | None, typer.Option(help="A .safetensors checkpoint. Default: the shipped model.")]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
PrecisionOption = Annotated[str, typer.Option(help="auto, fp32, bf16, fp16 (GPU) or int8 (CPU).")]
DecoderOption = Annotated[
    str | None, typer.Option(help="auto (beam where there is a language model), greedy or beam. Default: auto.")
]
BeamsOption = Annotated[int | None, typer.Option(help="Hypotheses that beam search keeps, 1 to 64. Default: 16.")]
LmOption = Annotated[
    str | None,
    typer.Option(help="Language model of the beam search: .arpa, .arpa.gz, .lm; or off. Default: the shipped one."),
]
UrlOption = Annotated[str | None, typer.Option(help="A running server, e.g. ws://127.0.0.1:8080.")]
KeyOption = Annotated[str | None, typer.Option(help="API key of that server.", envvar="TUTTI_API_KEY")]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tutti {version('tutti-asr')}")
        raise typer.Exit


@app.callback()
def _options(
    *,
    _version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None: ...


@app.command()
def serve(
    context: typer.Context,
    *,
    host: Annotated[str | None, typer.Option(help="Address to listen on. Default: 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 picks a free one. Default: 8080.")] = None,
    vosk_port: Annotated[
        int | None, typer.Option(help="A port for vosk-server's clients, which send no key. Default: none.")
    ] = None,
    model: ModelOption = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda. Default: auto.")] = None,
    precision: Annotated[str | None, typer.Option(help="auto, fp32, bf16, fp16 or int8. Default: auto.")] = None,
    decoder: DecoderOption = None,
    beams: BeamsOption = None,
    lm: LmOption = None,
    policy: Annotated[str | None, typer.Option(help="eager, deadline or single. Default: eager.")] = None,
    max_streams: Annotated[
        str | None, typer.Option(help="Streams at a time; more get 503. auto: as many as it can carry. Default: auto.")
    ] = None,
    max_batch: Annotated[int | None, typer.Option(help="Rows of a batch. Default: 128.")] = None,
    latency_budget_ms: Annotated[float | None, typer.Option(help="Deadline of a live step, ms. Default: 100.")] = None,
    vad: Annotated[str | None, typer.Option(help="Voice activity: off or silero. Default: off.")] = None,
    threads: Annotated[int | None, typer.Option(help="Compute threads. Default: all cores but one.")] = None,
    reproducible: Annotated[
        bool | None, typer.Option("--reproducible", help="Bit-identical log-probs in every batch, by fixed tiles.")
    ] = None,
    api_keys_file: Annotated[Path | None, typer.Option(help="Accepted keys, as `tutti keys` writes them.")] = None,
    resume_keys_file: Annotated[
        Path | None, typer.Option(help="Keys that all replicas share, so that streams move between them.")
    ] = None,
    idle_timeout_s: Annotated[
        float | None, typer.Option(help="Close a stream after so many silent seconds. Default: 10.")
    ] = None,
    drain_timeout_s: Annotated[
        float | None, typer.Option(help="Seconds for streams to end on SIGTERM. Default: 20.")
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error. Default: info.")] = None,
    log_format: Annotated[str | None, typer.Option(help="console or json. Default: console.")] = None,
) -> None:
    """Serve /v1/listen, Deepgram-compatible; its parameters are described at /docs.

    Every option has a TUTTI_… variable, such as TUTTI_MAX_STREAMS, and some settings are variables alone; see
    `server/settings.py`.
    """
    settings = _settings(context.params)  # the parameters bear the names of the settings
    from model.errors import ModelError
    from server.errors import SettingsError
    from server.serve import run

    try:
        code = run(settings)
    except (ModelError, SettingsError) as error:
        _fail(error)
    raise typer.Exit(code)


@app.command()
def transcribe(
    files: Annotated[list[Path], typer.Argument(help="wav, flac, ogg or mp3.", exists=True, dir_okay=False)],
    *,
    url: UrlOption = None,
    keyterm: Annotated[
        list[str] | None, typer.Option(help="A word or phrase to listen for; repeatable. Needs beam search.")
    ] = None,
    smart_format: Annotated[
        bool, typer.Option("--smart-format", help="Capitals, marks at the ends of utterances, and digits.")
    ] = False,
    realtime: Annotated[bool, typer.Option("--realtime", help="Send at the speed of speech.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines instead of a live display.")] = False,
    api_key: KeyOption = None,
    retry: Annotated[
        float, typer.Option(help="Seconds of patience with a server that is full, lost or restarting. 0: none.", min=0)
    ] = 30.0,
    resumable: Annotated[
        bool, typer.Option("--resumable", help="Ask for tickets, so that any replica can go on where one was lost.")
    ] = False,
    concurrency: Annotated[int, typer.Option(help="Recordings at a time.", min=1)] = 8,
    decoder: DecoderOption = None,
    beams: BeamsOption = None,
    lm: LmOption = None,
    model: ModelOption = None,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "auto",
) -> None:
    """Transcribe recordings: through a server with --url, else with the engine in this process.

    What chooses the engine (--decoder, --beams, --lm, --model, --device, --precision) is for this process alone.
    """
    from tutti_asr_client.errors import ClientError
    from tutti_asr_client.files.transcribe import run, run_remote

    # Only what is given: the address may bear a query of its own.
    asked: dict[str, Any] = {"keyterm": keyterm} if keyterm else {}
    asked |= {"smart_format": True} if smart_format else {}
    if url is not None:
        code = run_remote(
            files,
            url=url,
            api_key=api_key,
            realtime=realtime,
            as_json=as_json,
            concurrency=concurrency,
            retry_s=retry,
            resumable=resumable,
            query=asked,
        )
        raise typer.Exit(code)
    from model.errors import ModelError
    from server.tools.local import open_local

    options = {"decoder": decoder, "beams": beams, "lm": lm, "model": model, "device": device, "precision": precision}
    # A slot comes back a moment late.
    settings = _settings({**options, "max_batch": concurrency, "max_streams": 2 * concurrency})
    try:
        code = run(
            files,
            lambda: open_local(settings, **asked),
            realtime=realtime,
            as_json=as_json,
            concurrency=concurrency,
        )
    except (ClientError, ModelError) as error:
        _fail(error)
    raise typer.Exit(code)


@app.command()
def loadtest(
    *,
    url: Annotated[str, typer.Option(help="The server to load: a machine of your own.")] = "ws://127.0.0.1:8080",
    streams: Annotated[str, typer.Option(help="Levels: numbers of live streams, with commas.")] = "10,50,100",
    seconds: Annotated[float, typer.Option(help="Measured seconds of each level.")] = 20.0,
    manifest: Annotated[Path | None, typer.Option(help="JSON lines. Default: the shipped recordings.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document as the last line.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw percentiles and distributions into this PNG.")] = None,
    seed: Annotated[int, typer.Option(help="Decides starts and recordings.")] = 1,
    api_key: KeyOption = None,
    policy_label: Annotated[str, typer.Option(help="Name of the run in tables and plots.")] = "",
    stream_seconds: Annotated[float | None, typer.Option(help="About so long a stream. Default: a recording.")] = None,
    churn: Annotated[bool, typer.Option("--churn", help="Streams come at random times, last at random.")] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Refused streams come back when they were told to.")] = False,
    uploads: Annotated[int, typer.Option(help="Recordings posted at a time beside the live streams.")] = 0,
    explain: Annotated[bool, typer.Option("--explain", help="The parts of each answer's latency too.")] = False,
) -> None:
    """Load a server with live streams paced in real time, open loop; check every transcript; report latencies."""
    from loadtest.errors import BadSettings
    from loadtest.generator.arrivals import Arrivals
    from loadtest.generator.settings import LoadSettings, parse_streams
    from loadtest.measurement.run import run_loadtest

    try:
        settings = LoadSettings(
            url=url,
            streams=parse_streams(streams),
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
        raise typer.BadParameter(str(error)) from error
    raise typer.Exit(run_loadtest(settings, as_json=as_json, plot_path=plot))


@app.command()
def demo() -> None:
    """Start a server, stream a shipped recording in real time, show partials, final text and latencies."""
    from rich.console import Console

    from loadtest.demo import run_demo

    raise typer.Exit(run_demo(Console()))


@app.command()
def train(
    *,
    manifest: Annotated[list[Path], typer.Option(help="Training recordings, JSON lines; repeatable.")],
    out: Annotated[Path, typer.Option(help="The checkpoint to write, NAME.safetensors.")],
    recipe: Annotated[Path | None, typer.Option(help="JSON. Default: model/training/recipes/small-1.json.")] = None,
    init: Annotated[Path | None, typer.Option(help="A checkpoint to start from.")] = None,
    validation: Annotated[list[Path] | None, typer.Option(help="Held-out recordings; repeatable.")] = None,
    noise: Annotated[list[Path] | None, typer.Option(help="Noise and room responses; repeatable.")] = None,
    cache: Annotated[Path, typer.Option(help="Where decoded audio is kept between runs.")] = Path("build/audio"),
    device: DeviceOption = "auto",
    validate_every: Annotated[int, typer.Option(help="Updates between validations.", min=1)] = 500,
) -> None:
    """Train a model. An interrupted run goes on where it stopped when the same command is given again."""
    from model.errors import ModelError
    from model.training.recipe import RECIPES, read_recipe
    from model.training.run import Places, train

    places = Places(manifest, validation or [], noise or [], out, cache, init)
    try:
        config, chosen = read_recipe(recipe or RECIPES / "small-1.json")
        path = train(config, chosen, places, device=device, validate_every=validate_every, announce=typer.echo)
    except ModelError as error:
        _fail(error)
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    typer.echo(f"wrote {path}")


@app.command()
def synthesize(
    out: Annotated[Path, typer.Argument(help="Folder for the recordings and their manifest, synthetic.jsonl.")],
    *,
    hours: Annotated[float, typer.Option(help="Hours of speech.")] = 7.0,
    seed: Annotated[int, typer.Option(help="Decides texts and voices.")] = 1,
    jobs: Annotated[int, typer.Option(help="Processes.", min=1)] = 2,
    dev: Annotated[bool, typer.Option("--dev", help="Sentences of the held-out split.")] = False,
) -> None:
    """Make synthetic speech for training with espeak-ng and flite, in many voices."""
    from model.errors import ModelError
    from model.training.synthesize import synthesize as make

    try:
        typer.echo(make(out, hours, seed, jobs, "dev" if dev else "train"))
    except ModelError as error:
        _fail(error)
    except KeyboardInterrupt:
        typer.echo("interrupted; the finished rows are in the manifest", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None


@app.command()
def ceiling(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document as the last line.")] = False,
    threads: Annotated[int, typer.Option(help="Compute threads. Default: all cores but one.")] = 0,
    model: ModelOption = None,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "auto",
) -> None:
    """Time the bare model step by batch size: the ceiling of what a server can do on this machine."""
    import dataclasses

    from loadtest.planning.engine_times import batch_ms
    from model.acoustic import AcousticModel
    from model.ceiling import measure
    from model.errors import ModelError
    from model.runtime import set_threads

    set_threads(threads)
    try:
        loaded = AcousticModel.load(model, device=device, precision=precision)
    except ModelError as error:
        _fail(error)
    figures = measure(loaded)
    engine_ms = {rows: round(batch_ms(loaded, rows), 3) for rows in figures.step_ms if rows >= loaded.min_rows}
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(figures) | {"engine_ms": engine_ms}))
        return
    typer.echo(f"{figures.precision}, {figures.threads} compute threads; bare step, median:")
    for rows, ms in figures.step_ms.items():
        typer.echo(f"  batch {rows:4d}  {ms:8.2f} ms  = {rows * 80 / ms:7.0f} live streams")
    typer.echo(f"products: {figures.step_gflops:.0f} of {figures.product_gflops:.0f} GFLOP/s ({figures.share:.0%})")
    if figures.read_ns is not None:
        where = "from the caches" if figures.in_caches else "from memory, so steps are slow"
        typer.echo(f"a read of the weights: {figures.read_ns:.0f} ns, {where}")
    typer.echo("engine, of the bare step's rate, by batch:")
    typer.echo("  " + ", ".join(f"{rows}: {figures.step_ms[rows] / ms:.0%}" for rows, ms in engine_ms.items()))


def _settings(options: dict[str, Any]) -> Any:
    """Settings from options that were given, variables and defaults; a bad value ends the command with usage."""
    from pydantic import ValidationError

    from server.settings import Settings

    try:
        return Settings(**{name: value for name, value in options.items() if value is not None})
    except ValidationError as error:
        for problem in error.errors():
            typer.echo(f"--{str(problem['loc'][0]).replace('_', '-')}: {problem['msg']}", err=True)
        raise typer.Exit(2) from None


def _fail(error: Exception) -> NoReturn:
    typer.echo(f"tutti: {error}", err=True)
    raise typer.Exit(EXIT_FAILED) from error


app.command()(evaluate)
app.command()(calibrate)
app.command()(plan)
app.command()(doctor)
app.command()(drain)
app.add_typer(lm_commands, name="lm")
app.add_typer(keys_commands, name="keys")


def main() -> None:
    """Run the command line."""
    with contextlib.suppress(BrokenPipeError):
        app()


if __name__ == "__main__":
    main()
