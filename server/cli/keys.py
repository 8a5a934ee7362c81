"""`tutti keys`: create API keys, lines of the keys file, and the keys that replicas share for tickets and receipts."""

from __future__ import annotations

import hashlib
import os
import secrets
import sys
from pathlib import Path
from typing import Annotated

import typer

from server.cli.errors import fail, refuse, shorten
from server.cli.options import CheckedCommand

PREFIX = "tutti_"  # lets secret scanners recognize a leaked key
KEY_BYTES = 32
NEW_FILE_MODE = 0o600

keys = typer.Typer(help="Create API keys and write the file of their digests.", no_args_is_help=True)

NameOption = Annotated[str, typer.Option(help="Name of the key's owner: letters, digits and . _ @ -")]
StreamsOption = Annotated[
    int | None,
    typer.Option(help="Maximum calls open at once with this key; a call with two channels is one.", min=1, max=100_000),
]
OriginOption = Annotated[list[str] | None, typer.Option(help="Web origin that may use the key, https://…; repeatable.")]
RedactOption = Annotated[
    list[str] | None, typer.Option(help="Numbers that are masked in all results of the key (pci, ssn, …); repeatable.")
]
FileOption = Annotated[Path | None, typer.Option(help="Keys file to which the line is appended.", dir_okay=False)]


@keys.command(cls=CheckedCommand)
def new(
    *,
    name: NameOption = "",
    streams: StreamsOption = None,
    origin: OriginOption = None,
    redact: RedactOption = None,
    file: FileOption = None,
) -> None:
    """Create a key. It is printed once; the file holds only its digest."""
    key = PREFIX + secrets.token_urlsafe(KEY_BYTES)
    _keep(_line(key, name, streams, origin or [], redact or []), file, err=True)
    typer.echo(key)


@keys.command("hash", cls=CheckedCommand)
def hash_(
    *,
    name: NameOption = "",
    streams: StreamsOption = None,
    origin: OriginOption = None,
    redact: RedactOption = None,
    file: FileOption = None,
) -> None:
    """Read a key from standard input and print its line for the keys file, or append it with --file."""
    key = typer.prompt("Key", hide_input=True, err=True) if sys.stdin.isatty() else sys.stdin.readline()
    if not key.strip():
        fail("standard input: contains no key; send the key as one line")
    _keep(_line(key.strip(), name, streams, origin or [], redact or []), file, err=False)


@keys.command(cls=CheckedCommand)
def resume() -> None:
    """Create the key that replicas share so that a stream can resume on any of them (`TUTTI_RESUME_KEYS`)."""
    from server.resume.tickets import new_key

    typer.echo(new_key())


@keys.command(cls=CheckedCommand)
def receipt(
    *,
    file: Annotated[
        Path, typer.Option(help="File of the key; an older key stays in it for verification.", dir_okay=False)
    ],
    public: Annotated[bool, typer.Option("--public", help="Only print the public keys of an existing file.")] = False,
) -> None:
    """Create the key that signs receipts (`TUTTI_RECEIPT_KEY_FILE`) and print the public keys as JWKS."""
    from server.access.keys import write_private
    from server.errors import SettingsError
    from server.receipts.keys import ReceiptKeys

    try:
        signing = ReceiptKeys.load(file) if public or file.exists() else None
        if not public:
            signing = ReceiptKeys.new(signing)
            write_private(file, f"{signing.as_text(private=True)}\n".encode())
    except SettingsError as error:
        fail(error)
    except OSError as error:
        fail(f"cannot write {file}: {error.strerror}")
    assert signing is not None, "read or made"
    typer.echo(signing.as_text(private=False))


def _line(key: str, name: str, streams: int | None, origins: list[str], redact: list[str]) -> str:
    """Return the line for the keys file; exits if the server could not read it."""
    from server.access.keys import NAME
    from server.access.origins import origin_of

    if name and not NAME.fullmatch(name):
        refuse(f"--name {shorten(name)}: must be 1 to 64 letters, digits and . _ @ -")
    for origin in origins:
        try:
            origin_of(origin)
        except ValueError as error:
            refuse(f"--origin {shorten(origin)}: {error}")
    kinds = _kinds(redact)
    fields = [hashlib.sha256(key.encode()).hexdigest(), name]
    fields += [f"streams={streams}"] if streams is not None else []
    fields += [f"origins={','.join(origins)}"] if origins else []
    fields += [f"redact={','.join(kinds)}"] if kinds else []
    return "  ".join(field for field in fields if field)


def _kinds(redact: list[str]) -> list[str]:
    """Return the kinds of numbers to mask; exits if one is unknown."""
    from server.errors import BadParameter
    from server.text.redaction_kinds import kinds_of

    try:
        return sorted(kinds_of(redact))
    except BadParameter as error:
        refuse(f"--{error}")


def _keep(line: str, file: Path | None, *, err: bool) -> None:
    """Append the line to the file; without a file print it, on standard error (`err`) if the key goes to stdout."""
    if file is None:
        typer.echo(line, err=err)
        return
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT, NEW_FILE_MODE)
        with os.fdopen(descriptor, "r+b") as stream:
            text = stream.read()
            stream.write((b"" if not text or text.endswith(b"\n") else b"\n") + line.encode() + b"\n")
    except OSError as error:
        fail(f"cannot write {file}: {error.strerror}")
