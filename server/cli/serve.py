"""`tutti serve`: settings from options, and the server until it is stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from server.cli.errors import fail
from server.cli.options import (
    PRECISIONS,
    BeamsOption,
    DecoderOption,
    DeviceSetting,
    FinalsOption,
    GrammarsOption,
    LmOption,
    ModelsOption,
    settings_from,
)


def serve(
    context: typer.Context,
    *,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on, IPv6 too; :: or 0.0.0.0: all. Default: {default}.")
    ] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 picks a free one. Default: {default}.")] = None,
    vosk_port: Annotated[
        int | None, typer.Option(help="A port for vosk-server's clients, which send no key. Default: none.")
    ] = None,
    model: ModelsOption = None,
    models_file: Annotated[
        Path | None, typer.Option(help="Several models as tables of a TOML file. Default: none.")
    ] = None,
    device: DeviceSetting = None,
    precision: Annotated[str | None, typer.Option(help=f"{PRECISIONS} Default: {{default}}.")] = None,
    decoder: DecoderOption = None,
    beams: BeamsOption = None,
    lm: LmOption = None,
    grammars: GrammarsOption = None,
    finals: FinalsOption = None,
    policy: Annotated[str | None, typer.Option(help="eager, deadline or single. Default: {default}.")] = None,
    max_streams: Annotated[
        str | None,
        typer.Option(help="Channels at a time; more get 503. auto: as many as it can carry. Default: {default}."),
    ] = None,
    max_batch: Annotated[int | None, typer.Option(help="Rows of a batch. Default: {default}.")] = None,
    latency_budget_ms: Annotated[
        float | None, typer.Option(help="Deadline of a live step, ms. Default: {default}.")
    ] = None,
    vad: Annotated[str | None, typer.Option(help="Voice activity: off or silero. Default: {default}.")] = None,
    threads: Annotated[int | None, typer.Option(help="Compute threads. Default: all cores but one.")] = None,
    unload_idle_minutes: Annotated[
        float | None, typer.Option(help="Unload what was loaded on demand after so long without use. Default: never.")
    ] = None,
    reproducible: Annotated[
        bool | None, typer.Option("--reproducible", help="Bit-identical log-probs in every batch, by fixed tiles.")
    ] = None,
    lenient_features: Annotated[
        bool | None,
        typer.Option(
            "--lenient-features",
            help="Ignore and name features that are not there, such as diarize; never redact. For migrations.",
        ),
    ] = None,
    admin_local: Annotated[
        bool | None,
        typer.Option("--admin-local", help="Open /admin to this machine without a key. Not with a proxy on it."),
    ] = None,
    api_keys_file: Annotated[Path | None, typer.Option(help="Accepted keys, as `tutti keys` writes them.")] = None,
    resume_keys_file: Annotated[
        Path | None, typer.Option(help="Keys that all replicas share, so that streams move between them.")
    ] = None,
    idle_timeout_s: Annotated[
        float | None, typer.Option(help="Close a stream after so many silent seconds. Default: {default}.")
    ] = None,
    drain_timeout_s: Annotated[
        float | None, typer.Option(help="Seconds for streams to end on SIGTERM. Default: {default}.")
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error. Default: {default}.")] = None,
    log_format: Annotated[str | None, typer.Option(help="console or json. Default: {default}.")] = None,
) -> None:
    """Serve /v1/listen, Deepgram-compatible; its parameters are described at /docs.

    Several models share one replica: clients choose by name or language.

    Every option has a TUTTI_… variable, such as TUTTI_MAX_STREAMS, and some settings are variables alone:
    docs/settings.md has them all.
    """
    settings = settings_from(context.params)  # the parameters bear the names of the settings
    from model.errors import ModelError
    from server.errors import SettingsError
    from server.serve import run

    try:
        code = run(settings)
    except (ModelError, SettingsError) as error:
        fail(error, context.params)
    raise typer.Exit(code)
