"""`tutti serve`: build settings from options and run the server until it is stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from server.cli.errors import EXIT_ADDRESS, EXIT_FAILED, fail
from server.cli.options import (
    PRECISIONS,
    BeamsOption,
    DecoderOption,
    DeviceSetting,
    FinalsOption,
    GrammarsOption,
    LmOption,
    ModelsOption,
    WrittenFormsOption,
    announce_compilation,
    settings_from,
)


def serve(
    context: typer.Context,
    *,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on, IPv4 or IPv6; :: or 0.0.0.0 for all. Default: {default}.")
    ] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 picks a free one. Default: {default}.")] = None,
    vosk_port: Annotated[
        int | None, typer.Option(help="Port for vosk-server clients, which send no key. Default: none.")
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option(help="Port for /metrics alone, instead of the main port. Default: none.")
    ] = None,
    model: ModelsOption = None,
    models_file: Annotated[
        Path | None, typer.Option(help="TOML file that lists several models. Default: none.")
    ] = None,
    device: DeviceSetting = None,
    precision: Annotated[str | None, typer.Option(help=f"{PRECISIONS} Default: {{default}}.")] = None,
    decoder: DecoderOption = None,
    beams: BeamsOption = None,
    lm: LmOption = None,
    grammars: GrammarsOption = None,
    finals: FinalsOption = None,
    written_forms: WrittenFormsOption = None,
    policy: Annotated[str | None, typer.Option(help="eager, deadline or single. Default: {default}.")] = None,
    max_streams: Annotated[
        str | None,
        typer.Option(
            help="Maximum concurrent channels (a stereo call has two); more get 503. auto: the estimated capacity. "
            "Default: {default}."
        ),
    ] = None,
    max_batch: Annotated[int | None, typer.Option(help="Maximum streams in a batch. Default: {default}.")] = None,
    latency_budget_ms: Annotated[
        float | None, typer.Option(help="Deadline of a live step, ms. Default: {default}.")
    ] = None,
    vad: Annotated[
        str | None, typer.Option(help="Voice activity detector: auto, off or silero. Default: {default}.")
    ] = None,
    turn_model: Annotated[
        Path | None,
        typer.Option(help="ONNX graph of Smart Turn's form, asked in pauses whether the turn is over. Default: none."),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            help="Compute threads of each engine, which divide the rows of a batch. Default: by cores and model."
        ),
    ] = None,
    front_ends: Annotated[
        str | None,
        typer.Option(
            help="Processes that serve clients, before those with the models; 0: one process does both; auto: by "
            "cores. Default: {default}."
        ),
    ] = None,
    engines: Annotated[
        str | None,
        typer.Option(help="With front ends: processes with the models; auto: by cores and model. Default: {default}."),
    ] = None,
    unload_idle_minutes: Annotated[
        float | None, typer.Option(help="Unload on-demand models after this many idle minutes. Default: never.")
    ] = None,
    reproducible: Annotated[
        bool | None,
        typer.Option("--reproducible", help="Bit-identical log-probs in every batch, by tiles of fixed size."),
    ] = None,
    lenient_features: Annotated[
        bool | None,
        typer.Option(
            "--lenient-features",
            help="Ignore unsupported features such as diarize, except redact, and list them. For migrations.",
        ),
    ] = None,
    admin_local: Annotated[
        bool | None,
        typer.Option(
            "--admin-local", help="Open /admin to this machine without a key. Unsafe with a proxy on this machine."
        ),
    ] = None,
    api_keys_file: Annotated[
        Path | None, typer.Option(help="File of accepted API keys, written by `tutti keys`.")
    ] = None,
    resume_keys_file: Annotated[
        Path | None,
        typer.Option(help="File of keys that all replicas share, so that streams can resume on any of them."),
    ] = None,
    receipt_key_file: Annotated[
        Path | None, typer.Option(help="File of the key that signs receipts, written by `tutti keys receipt`.")
    ] = None,
    idle_timeout_s: Annotated[
        float | None, typer.Option(help="Close a stream after this many seconds without audio. Default: {default}.")
    ] = None,
    drain_timeout_s: Annotated[
        float | None, typer.Option(help="Seconds that streams have to end after SIGTERM. Default: {default}.")
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error. Default: {default}.")] = None,
    log_format: Annotated[str | None, typer.Option(help="console or json. Default: {default}.")] = None,
) -> None:
    """Serve /v1/listen, Deepgram-compatible; its parameters are described at /docs.

    A server can serve several models: clients choose by name or language.

    Every option has a TUTTI_… variable, such as TUTTI_MAX_STREAMS. Some settings have only a variable:
    docs/settings.md lists all of them.
    """
    settings = settings_from(context.params)  # the parameters are named after the settings
    from model.errors import ModelError
    from server.errors import AddressError, SettingsError
    from server.processes.layout import with_processes
    from server.text.own_forms import own_forms_of

    try:
        own_forms_of(settings.written_forms)  # a bad file ends the start before models are loaded
        announce_compilation()
        settings = with_processes(settings)
        if settings.front_ends:  # a supervisor loads neither models nor the web framework
            from server.processes.supervisor import run as supervise

            code = supervise(settings)
        else:
            from server.serve import run

            code = run(settings)
    except (ModelError, SettingsError) as error:
        fail(error, context.params, status=EXIT_ADDRESS if isinstance(error, AddressError) else EXIT_FAILED)
    raise typer.Exit(code)
