"""`tutti transcribe`: recordings through a server, or through the engine in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from server.cli.options import (
    BeamsOption,
    DecoderOption,
    DeviceOption,
    FinalsOption,
    GrammarOption,
    GrammarsOption,
    KeyOption,
    LanguageOption,
    LmOption,
    ModelOption,
    PrecisionOption,
    SecondBeamsOption,
    SecondLmOption,
    UrlOption,
    fail,
    model_for,
    settings_from,
)


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
    grammars: GrammarsOption = None,
    second_beams: SecondBeamsOption = None,
    second_lm: SecondLmOption = None,
    language: LanguageOption = None,
    grammar: GrammarOption = None,
    finals: FinalsOption = None,
    model: ModelOption = None,
    device: DeviceOption,
    precision: PrecisionOption,
) -> None:
    """Transcribe recordings: through a server with --url, else with the engine in this process.

    What chooses the engine (--decoder, --beams, --lm, --second-beams, --second-lm, --model, --device, --precision) is
    for this process alone.
    """
    from tutti_asr_client.errors import ClientError
    from tutti_asr_client.files.transcribe import run, run_remote

    # Only the options that were given: the address may have a query of its own.
    asked: dict[str, Any] = {"keyterm": keyterm} if keyterm else {}
    asked |= {"smart_format": True} if smart_format else {}
    asked |= {"grammar": grammar} if grammar else {}
    asked |= {"finals": finals} if finals else {}
    if url is not None:
        asked |= {"language": language} if language else {}
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
    from server.errors import SettingsError
    from server.tools.local import open_local

    options: dict[str, Any] = {"decoder": decoder, "beams": beams, "lm": lm, "device": device, "precision": precision}
    options |= {"model": model_for(language, model)}
    options |= {"grammars": grammars, "second_beams": second_beams, "second_lm": second_lm}
    # A slot is free again only after its recording's last batch.
    settings = settings_from({**options, "max_batch": concurrency, "max_streams": 2 * concurrency})
    try:
        code = run(
            files,
            lambda: open_local(settings, **asked),
            realtime=realtime,
            as_json=as_json,
            concurrency=concurrency,
        )
    except (ClientError, ModelError, SettingsError) as error:
        fail(error)
    raise typer.Exit(code)
