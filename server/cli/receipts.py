"""`tutti replay`: finals with receipts are derived again from their audio, and compared."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from server.cli.errors import fail
from server.cli.options import (
    DeviceOption,
    JsonOption,
    LanguageOption,
    LmOption,
    ModelOption,
    ThreadsOption,
    WrittenFormsOption,
    announce_compilation,
    model_for,
    settings_from,
)

if TYPE_CHECKING:
    from server.receipts.keys import ReceiptKeys
    from server.settings import Settings

EXIT_DIFFERS = 1

KeysOption = Annotated[
    Path | None,
    typer.Option(
        "--keys",
        help="Public keys of the server: GET /.well-known/jwks.json. Default: signatures are not checked.",
        dir_okay=False,
    ),
]
LostOption = Annotated[
    bool, typer.Option("--lost", help="Accept streams without a closing receipt, whose connection was lost.")
]


def replay(
    audio: Annotated[
        Path,
        typer.Argument(
            help="Recording of the stream: its bytes as sent, or WAV. Or a folder of streams, "
            "NAME.jsonl next to NAME.wav each."
        ),
    ],
    messages: Annotated[
        Path | None, typer.Argument(help="Messages of a stream with receipt=true, one a line.", dir_okay=False)
    ] = None,
    *,
    keys: KeysOption = None,
    lost: LostOption = False,
    lm: LmOption = None,
    written_forms: WrittenFormsOption = None,
    language: LanguageOption = None,
    model: ModelOption = None,
    device: DeviceOption,
    threads: ThreadsOption,
    as_json: JsonOption = False,
) -> None:
    """Derive the finals of a stream, or of all in a folder, again from the audio, and compare them with the receipts.

    Exits with 1 if anything differs, and names it: signature, order of finals, end of the stream, message, not signed,
    audio, model, decoder, language model, key terms, settings, words.
    """
    if audio.is_dir() != (messages is None):
        raise typer.BadParameter("give a recording and its messages, or a folder alone")
    if not audio.exists():
        fail(f"{audio}: no such file")
    given = {"lm": lm, "model": model_for(language, model), "device": device, "threads": threads}
    settings = settings_from({**given, "written_forms": written_forms, "max_uploads": 1})
    announce_compilation()
    differing = _run(_replay(settings, _keys(keys), audio, messages, may_lack_end=lost, as_json=as_json))
    raise typer.Exit(EXIT_DIFFERS if differing else 0)


async def _replay(
    settings: Settings,
    keys: ReceiptKeys | None,
    audio: Path,
    messages: Path | None,
    *,
    may_lack_end: bool,
    as_json: bool,
) -> int:
    """Replay the stream or the folder, and report it; return how many streams differ."""
    from server.receipts.recorded import unsigned_parts
    from server.tools.replay import Replayer, read_stored, stored_in

    streams = stored_in(audio) if messages is None else iter([read_stored(messages, audio)])
    checked = "signatures are valid" if keys is not None else "signatures were not checked (--keys)"
    reports: list[dict[str, Any]] = []
    async with Replayer.opened(settings, keys, may_lack_end=may_lack_end) as replayer:
        async for stream, differences in replayer.each(streams):
            details = [{"part": difference.part.value, "detail": difference.detail} for difference in differences]
            finals, unsigned = len(stream.recorded.finals), unsigned_parts(stream.recorded)
            reports.append({"stream": stream.name, "finals": finals, "not_signed": unsigned, "differences": details})
            name = f"{stream.name}: " if messages is None else ""
            for difference in () if as_json else differences:
                typer.echo(f"{name}{difference}")
            if messages is not None and not as_json:
                if not differences:
                    typer.echo(f"{finals} finals are the same; {checked}")
                if unsigned:
                    typer.echo(f"without a signature: {', '.join(unsigned)}")
    if not reports:
        fail(f"{audio}: no messages of streams; expected files NAME.jsonl")
    differing = sum(bool(report["differences"]) for report in reports)
    if as_json:
        document = {"streams": reports} if messages is None else reports[0]
        typer.echo(json.dumps({**document, "signatures_checked": keys is not None}))
    elif messages is None:
        typer.echo(f"{len(reports)} streams replayed, {differing} differ; {checked}")
    return differing


def _run(work: Any) -> Any:
    """Run it; an expected error ends the command."""
    from model.errors import ModelError
    from server.errors import ServerError
    from server.receipts.recorded import BadReceipt

    try:
        return asyncio.run(work)
    except (BadReceipt, ModelError, ServerError) as error:
        fail(error)
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}" if error.filename else error)


def _keys(path: Path | None) -> ReceiptKeys | None:
    if path is None:
        return None
    from server.receipts.keys import ReceiptKeys

    try:
        return ReceiptKeys.read(path.read_text(encoding="utf-8"))
    except OSError as error:
        fail(f"{path}: {error.strerror}")
    except ValueError as error:
        fail(f"{path}: {error}")
