"""`tutti voice`: enroll voices for `speaker=NAME`, list and delete them. A running server sees changes at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from server.cli.errors import complain, fail, refuse, refuse_ignored, shorten
from server.cli.options import CheckedCommand, JsonOption

if TYPE_CHECKING:
    from server.access.voices import EnrolledVoice

voice = typer.Typer(
    name="voice",
    help="Enrolled voices: vectors that can identify a person, kept in a folder (docs/speakers.md).",
    no_args_is_help=True,
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the voice: letters, digits and . _ @ -")]
FolderOption = Annotated[
    Path, typer.Option("--voices", envvar="TUTTI_VOICES", help="Folder of enrolled voices.", file_okay=False)
]
KeyOption = Annotated[
    str, typer.Option("--key", help="Name or id of the API key that alone may use the voice. Default: every key.")
]


@voice.command(cls=CheckedCommand)
def enroll(
    context: typer.Context,
    name: NameArgument,
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Recordings in which only this person speaks.")
    ],
    *,
    voices: FolderOption,
    key: KeyOption = "",
    keys_file: Annotated[
        Path | None,
        typer.Option("--api-keys-file", envvar="TUTTI_API_KEYS_FILE", help="Keys file, which must have the --key."),
    ] = None,
) -> None:
    """Store a vector of the voice in recordings, never their audio. Say how many seconds of voice were used."""
    _check_names(name, key)
    if name == "first":
        refuse("NAME first: means the voice of the first words of a stream; choose another name")
    if not key:
        refuse_ignored(context, ["keys_file"], "needs --key")
    elif keys_file is not None:
        _check_key(key, keys_file)
    from model.errors import ModelError
    from server.access.voices import VoiceFolder
    from server.errors import SettingsError
    from server.models.loading import speaker_weights
    from server.tools.enrollment import NotEnrolled
    from server.tools.enrollment import enroll as enrolled_of
    from server.tools.recordings import BadInput, RecordingReader, recordings_of
    from tutti_asr_client.errors import AudioError

    try:
        folder = VoiceFolder.made(voices, speaker_weights())
        if folder.read(name, key) is not None:
            fail(f"voice {shorten(name)}: enrolled before, {_for(key)}; delete it first, or choose another name")
        made = enrolled_of(recordings_of(files), RecordingReader(complain))
        folder.add(name, key, made.vector.astype("<f4").tobytes(), made.seconds)
    except BadInput as error:
        refuse(error)
    except (AudioError, ModelError, NotEnrolled) as error:
        fail(error)
    except (OSError, ValueError, SettingsError) as error:
        _fail_of_folder(voices, error)
    typer.echo(f"{name}: enrolled from {made.seconds:g} s of voice, {_for(key)}")


@voice.command("list", cls=CheckedCommand)
def list_(*, voices: FolderOption, as_json: JsonOption = False) -> None:
    """Show the voices of a folder: name, key, seconds of voice, and the date."""
    from server.access.voices import VoiceFolder
    from server.errors import SettingsError
    from server.models.loading import speaker_weights

    try:
        folder = VoiceFolder(voices, speaker_weights())
        rows = [_row(one, fits=folder.fits(one)) for one in folder.every()]
    except (OSError, ValueError, SettingsError) as error:
        _fail_of_folder(voices, error)
    if as_json:
        typer.echo(json.dumps({"voices": rows}))
        return
    for row in rows:
        old = "" if row["usable"] else "; made with other weights: delete it, and enroll it again"
        typer.echo(f"{row['name']}: {row['seconds']:g} s of voice, {row['created']}, {_for(str(row['key']))}{old}")


@voice.command(cls=CheckedCommand)
def delete(name: NameArgument, *, voices: FolderOption, key: KeyOption = "") -> None:
    """Delete a voice: no stream that opens from now on can use it. Open streams keep it until they end."""
    _check_names(name, key)
    from server.access.voices import VoiceFolder
    from server.errors import SettingsError
    from server.models.loading import speaker_weights

    try:
        VoiceFolder(voices, speaker_weights()).delete(name, key)
    except FileNotFoundError:
        fail(f"voice {shorten(name)}: none of this name, {_for(key)}; `tutti voice list` shows all")
    except (OSError, SettingsError) as error:
        _fail_of_folder(voices, error)
    typer.echo(f"{name}: deleted, {_for(key)}")


def _check_names(name: str, key: str) -> None:
    """Exits if a voice or a key cannot be called so."""
    from server.access.keys import NAME

    for what, text in (("NAME", name), ("--key", key)):
        if text and not NAME.fullmatch(text):
            refuse(f"{what} {shorten(text)}: must be 1 to 64 letters, digits and . _ @ -")


def _check_key(key: str, file: Path) -> None:
    """Exits if the keys file has no key of this name or id."""
    from server.access.keys import parse_keys, read_secrets
    from server.errors import SettingsError

    try:
        keys = parse_keys(read_secrets("key", (), file))
    except SettingsError as error:
        fail(error)
    if not any(key in (one.name, one.id) for one in keys):
        fail(f"--key {shorten(key)}: no key of this name or id in {file}")


def _row(one: EnrolledVoice, *, fits: bool) -> dict[str, object]:
    return {"name": one.name, "key": one.key, "seconds": one.seconds, "created": one.created, "usable": fits}


def _for(key: str) -> str:
    return f"for the key {key}" if key else "for every key"


def _fail_of_folder(folder: Path, error: Exception) -> NoReturn:
    """Exits with what is wrong with the folder or one of its files."""
    why = error.strerror if isinstance(error, OSError) else str(error)
    fail(f"--voices {folder}: {why}")
