"""`tutti receipt`, `tutti replay` and `tutti audit`: documents of signed finals, and deriving them from the audio."""

from __future__ import annotations

import asyncio
import json
import re
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
    from server.receipts.recorded import Recorded
    from server.receipts.verification import Difference
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
MessagesArgument = Annotated[
    Path, typer.Argument(help="Messages of a stream with receipt=true, one a line; or a vCon document.", dir_okay=False)
]


def receipt(
    messages: MessagesArgument,
    *,
    audio: Annotated[
        Path | None, typer.Option(help="Recording of the call; the document has its name and hash.", dir_okay=False)
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File of the document. Default: standard output.")] = None,
) -> None:
    """Make a vCon document of a call from the messages that its client recorded."""
    from server.receipts.recorded import BadReceipt
    from server.receipts.vcon import vcon_of

    recorded = _read(messages)
    try:
        content = None if audio is None else (audio.name, audio.read_bytes())
        text = json.dumps(vcon_of(recorded, content), ensure_ascii=False, indent=1) + "\n"
        if out is None:
            typer.echo(text, nl=False)
        else:
            out.write_text(text, encoding="utf-8")
    except BadReceipt as error:
        fail(f"{messages}: {error}")
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}")


def replay(
    audio: Annotated[Path, typer.Argument(help="Recording of the stream: its bytes as sent, or WAV.")],
    receipts: MessagesArgument,
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
    """Derive the finals of a stream again from its audio, and compare them with its receipts.

    Exits with 1 if anything differs, and names it: signature, order of finals, end of the stream, message, not signed,
    audio, model, decoder, language model, key terms, settings, words.
    """
    settings = _settings(lm, model_for(language, model), device, threads, written_forms)
    if not audio.is_file():
        fail(f"{audio}: no such file")
    recorded = _read(receipts)
    differences = _run(_differences(settings, _keys(keys), recorded, audio, lost=lost))
    _report(differences, recorded, keys, as_json=as_json)


def audit(
    folder: Annotated[Path, typer.Argument(help="Folder with NAME.vcon.json or NAME.jsonl next to NAME.wav.")],
    *,
    share: Annotated[float, typer.Option(help="Share of the streams that is replayed.", min=0.0, max=1.0)] = 1.0,
    day: Annotated[
        str, typer.Option(help="Only streams that began on this day, 2026-11-27, in UTC. Default: all.")
    ] = "",
    seed: Annotated[int, typer.Option(help="Random seed for the choice of streams.")] = 0,
    concurrency: Annotated[int, typer.Option(help="Streams replayed at once.", min=1)] = 8,
    keys: KeysOption = None,
    lost: LostOption = False,
    lm: LmOption = None,
    written_forms: WrittenFormsOption = None,
    language: LanguageOption = None,
    model: ModelOption = None,
    device: DeviceOption,
    threads: ThreadsOption,
) -> None:
    """Replay a share of stored streams, and report the first one that differs. Exits with 1 if one does."""
    if day and not re.fullmatch(r"\d{4}-\d{2}-\d{2}", day):
        raise typer.BadParameter(f"--day {day[:32]!r}: must be a day such as 2026-11-27, in UTC")
    settings = _settings(lm, model_for(language, model), device, threads, written_forms)
    if not folder.is_dir():
        fail(f"{folder}: no such folder")
    _run(_audit(settings, _keys(keys), folder, (day, share, seed, concurrency), lost=lost))


def _settings(lm: str | None, model: Path | None, device: str, threads: int, written_forms: Path | None) -> Settings:
    given = {"lm": lm, "model": model, "device": device, "threads": threads, "written_forms": written_forms}
    return settings_from({**given, "max_uploads": 1})


async def _differences(
    settings: Settings, keys: ReceiptKeys | None, recorded: Recorded, audio: Path, *, lost: bool
) -> list[Difference]:
    from server.tools.replay import Replayer

    async with Replayer.opened(settings, keys, may_lack_end=lost) as replayer:
        return await replayer.differences(recorded, audio)


async def _audit(
    settings: Settings, keys: ReceiptKeys | None, folder: Path, chosen: tuple[str, float, int, int], *, lost: bool
) -> None:
    from server.tools.audit import audit as audited
    from server.tools.audit import share_of, stored_in
    from server.tools.replay import Replayer

    day, share, seed, concurrency = chosen
    stored = list(stored_in(folder, day))
    if not stored:
        fail(f"{folder}: no receipts{f' of {day}' if day else ''}; expected files NAME.vcon.json or NAME.jsonl")
    streams = share_of(stored, share, seed)
    async with Replayer.opened(settings, keys, may_lack_end=lost) as replayer:
        finding = await audited(replayer, streams, concurrency)
    if finding is not None:
        for difference in finding.differences:
            typer.echo(f"{finding.name}: {difference}")
        raise typer.Exit(EXIT_DIFFERS)
    typer.echo(f"{len(streams)} of {len(stored)} streams replayed: no difference")


def _run(work: Any) -> Any:
    """Run it; an expected error ends the command."""
    from model.errors import ModelError
    from server.errors import ServerError
    from server.receipts.recorded import BadReceipt

    announce_compilation()
    try:
        return asyncio.run(work)
    except (BadReceipt, ModelError, ServerError) as error:
        fail(error)
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}" if error.filename else error)


def _read(path: Path) -> Recorded:
    from server.receipts.recorded import BadReceipt
    from server.tools.audit import read_stored

    try:
        return read_stored(path)
    except OSError as error:
        fail(f"{path}: {error.strerror}")
    except BadReceipt as error:
        fail(error)


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


def _report(differences: list[Difference], recorded: Recorded, keys: Path | None, *, as_json: bool) -> None:
    from server.receipts.unsigned import unsigned_parts

    finals, unsigned = len(recorded.finals), unsigned_parts(recorded)
    checked = "signatures are valid" if keys is not None else "signatures were not checked (--keys)"
    if as_json:
        report = {"finals": finals, "signatures_checked": keys is not None, "not_signed": unsigned}
        details = [{"part": difference.part.value, "detail": difference.detail} for difference in differences]
        typer.echo(json.dumps({**report, "differences": details}))
    else:
        for difference in differences:
            typer.echo(str(difference))
        if not differences:
            typer.echo(f"{finals} finals are the same; {checked}")
        if unsigned:
            typer.echo(f"without a signature: {', '.join(unsigned)}")
    if differences:
        raise typer.Exit(EXIT_DIFFERS)
