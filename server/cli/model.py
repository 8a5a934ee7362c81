"""`tutti model`: fetch and examine models, load and unload those of a server."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from server.cli.errors import EXIT_FAILED, EXIT_INTERRUPTED, bad_option, complain, fail
from server.cli.operate import AdminKeyOption, AdminUrlOption, ask_admin
from server.cli.options import CheckedCommand, DeviceOption, JsonOption, PrecisionOption, ThreadsOption

if TYPE_CHECKING:
    from server.tools.fetch.releases import Release

model = typer.Typer(name="model", help="Acoustic models: checkpoints, and published ONNX models.", no_args_is_help=True)


LOADING_S = 120.0  # enough for a large model on a slow disk
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Model name as listed by `tutti model list`.")]


@model.callback()
def _group() -> None: ...


@model.command(cls=CheckedCommand)
def check(
    directory: Annotated[
        Path | None,
        typer.Argument(
            metavar="DIR",
            help="Folder or file of a published model, a checkpoint, or a shipped name. Default: the shipped model.",
        ),
    ] = None,
    *,
    audio: Annotated[
        Path | None, typer.Option(help="Transcribe this recording, and compare with sherpa-onnx if it is installed.")
    ] = None,
    threads: ThreadsOption,
    device: DeviceOption,
    precision: PrecisionOption,
    as_json: JsonOption = False,
) -> None:
    """Describe a model: its size, batch invariance, speed on this machine, and the text of a recording.

    Exit status 1 if it cannot be loaded, if symbols depend on the batch, or if sherpa-onnx outputs different tokens.
    """
    from model.errors import ModelError
    from server.cli.options import settings_from
    from server.tools.model_check import Asked
    from server.tools.model_check import check as examine
    from server.tools.model_check_report import lines
    from tutti_asr_client.errors import AudioError

    try:
        document = examine(Asked(directory, audio, device, precision), settings_from({"threads": threads}))
    except (ModelError, AudioError) as error:
        fail(error)
    if as_json:
        typer.echo(json.dumps(document, ensure_ascii=False))
    else:
        for line in lines(document):
            typer.echo(line)
    raise typer.Exit(0 if document["ok"] else EXIT_FAILED)


@model.command(cls=CheckedCommand)
def fetch(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="Name of a model in the list, or the URL of an archive. Default: show the list."
        ),
    ] = None,
    *,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder to create. Default: ./NAME.")] = None,
    sha256: Annotated[
        str | None, typer.Option(metavar="HEX", help="Refuse the file if its SHA-256 digest is another.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the folder if it exists.")] = False,
    list_them: Annotated[bool, typer.Option("--list", help="List the published models that have a name here.")] = False,
) -> None:
    """Download a published streaming model, check its digest, unpack it, and examine it as `tutti model check` does.

    Exit status 1 if it is not fetched or cannot be loaded. `HTTPS_PROXY` and `HTTP_PROXY` are used.
    """
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    from server.errors import ServerError
    from server.tools.fetch import model_fetch
    from server.tools.fetch.download import without_secrets
    from server.tools.fetch.releases import read_releases

    releases = read_releases()
    if name is None or list_them:
        if name is not None:
            raise typer.BadParameter("--list: cannot be combined with NAME; leave one of them out")
        if out is not None or sha256 is not None or force:
            raise typer.BadParameter("NAME: is missing; `tutti model fetch --list` shows the names")
        for line in model_fetch.table(releases):
            typer.echo(line)
        return
    release = _release(name, sha256, releases)
    folder = out or Path(release.name)
    typer.echo(f"downloading {without_secrets(release.url)}", err=True)
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    try:
        with Progress(*columns, console=Console(stderr=True)) as progress:
            task = progress.add_task("", total=None)
            fetched = model_fetch.fetch(
                release, folder, lambda done, total: progress.update(task, completed=done, total=total), force=force
            )
    except ServerError as error:
        fail(error)
    except KeyboardInterrupt:
        complain(f"interrupted; nothing was written to {folder}")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    checked = "as expected" if fetched.verified else "not checked: none is known; keep it for --sha256"
    typer.echo(f"SHA-256 {fetched.sha256}, {checked}")
    _examine_fetched(fetched.path)


def _release(name: str, sha256: str | None, releases: Sequence[Release]) -> Release:
    """Return the release of a name or URL, with the digest that is expected. Raises: typer.BadParameter."""
    from server.tools.fetch import model_fetch
    from server.tools.fetch.download import without_secrets

    try:
        release = model_fetch.find(name, releases)
    except model_fetch.UnknownModel as error:
        raise bad_option("NAME", without_secrets(name), str(error)) from None
    try:
        return release if sha256 is None else model_fetch.with_digest(release, sha256)
    except model_fetch.UnknownModel as error:
        raise bad_option("--sha256", sha256, str(error)) from None


def _examine_fetched(path: Path) -> None:
    """Show what `tutti model check` finds, and how to serve the model. A model that cannot be loaded fails."""
    from model.errors import ModelError
    from server.cli.options import settings_from
    from server.tools.model_check import Asked
    from server.tools.model_check import check as examine
    from server.tools.model_check_report import lines

    try:
        document = examine(Asked(path, None, "auto", "auto"), settings_from({}))
    except ModelError as error:
        fail(f"fetched to {path}, but it cannot be loaded: {error}")
    for line in lines(document):
        typer.echo(line)
    typer.echo(f"serve it: tutti serve --model {shlex.quote(str(path))}")


@model.command(name="list", cls=CheckedCommand)
def list_(*, url: AdminUrlOption, admin_key: AdminKeyOption = None) -> None:
    """List the models of a running server: loaded, loading, unloading or not loaded; and their streams."""
    for state in ask_admin(url, "GET", "models", admin_key, timeout_s=LOADING_S):
        _show(state)


@model.command(cls=CheckedCommand)
def load(name: NameArgument, *, url: AdminUrlOption, admin_key: AdminKeyOption = None) -> None:
    """Load a model in a running server, without interrupting streams. Returns when the model accepts streams."""
    _show(ask_admin(url, "POST", f"models/{quote(name, safe='')}/load", admin_key, timeout_s=LOADING_S))


@model.command(cls=CheckedCommand)
def unload(name: NameArgument, *, url: AdminUrlOption, admin_key: AdminKeyOption = None) -> None:
    """Unload a model of a running server: it accepts no new streams, and is freed when the open ones have ended."""
    _show(ask_admin(url, "POST", f"models/{quote(name, safe='')}/unload", admin_key, timeout_s=LOADING_S))


def _show(state: dict[str, Any]) -> None:
    default = ", the default" if state["default"] else ""
    typer.echo(f"{state['name']}: {state['phase']}{default}, {state['streams']} streams")
