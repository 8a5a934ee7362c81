"""`tutti serve`, `doctor`, `drain`, `engine`: run a server, check a machine, drain a server or replace its engine."""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from http import HTTPStatus
from http.client import HTTPException
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from server.cli.errors import EXIT_ADDRESS, EXIT_FAILED, fail
from server.cli.options import CheckedCommand, JsonOption, announce_compilation, printable

POLL_S = 0.5
TIMEOUT_S = 5.0
RESTART_TIMEOUT_S = 600.0  # a large model takes minutes to load from a network volume
HOST, PORT = "127.0.0.1", 8080
NO_KEY = "the server requires an admin key: set --admin-key or TUTTI_ADMIN_KEY"


def _http_url(value: str) -> str:
    """Check the address of a server; used as an option's `callback`."""
    try:
        parts = urlsplit(value)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and value.isprintable()
    except ValueError:  # a bad port
        valid = None
    if not valid:
        raise typer.BadParameter(f"must be an address such as http://{HOST}:{PORT}")
    return value


def _own_url() -> str:
    """Return the address on this machine of a server with the same variables."""
    from server.configuration.addresses import open_address

    host, port = (os.environ.get(f"TUTTI_{name}") for name in ("HOST", "PORT"))
    return open_address((host or "").strip("[] ") or HOST, port or PORT)


AdminUrlOption = Annotated[
    str, typer.Option(help="Address of the server.", callback=_http_url, default_factory=_own_url)
]
AdminKeyOption = Annotated[
    str | None,
    typer.Option(help="Admin key, if the server requires one.", envvar="TUTTI_ADMIN_KEY", callback=printable),
]


def serve(context: typer.Context) -> None:
    """Serve /v1/listen, Deepgram-compatible; its parameters are described at /docs.

    A server can serve several models: clients choose by name or language.

    Every option has a TUTTI_… variable, such as TUTTI_MAX_STREAMS. Some settings have only a variable:
    docs/settings.md lists all of them.
    """
    settings = context.obj
    from model.errors import ModelError
    from server.errors import AddressError, SettingsError
    from server.models.whisper import check_whisper
    from server.processes.layout import with_processes
    from server.text.own_forms import own_forms_of

    try:
        own_forms_of(settings.written_forms)  # a bad file ends the start before models are loaded
        check_whisper(settings)
        announce_compilation()
        settings = with_processes(settings)
        if settings.front_ends:  # a supervisor loads neither models nor the web framework
            from server.processes.supervisor import run as supervise

            code = supervise(settings)
        else:
            from server.serve import run

            code = run(settings)
    except (ModelError, SettingsError) as error:
        fail(error, status=EXIT_ADDRESS if isinstance(error, AddressError) else EXIT_FAILED)
    raise typer.Exit(code)


def doctor(context: typer.Context, *, as_json: JsonOption = False) -> None:
    """Check installation, machine and model with the options and variables of `tutti serve`; say what to fix.

    Exit status 1 if a check fails; 0 if there are only warnings.
    """
    from server.tools.doctor import findings as report
    from server.tools.doctor.machine import CHECKS as MACHINE
    from server.tools.doctor.models import CHECKS as MODEL

    findings: list[report.Finding] = []

    def show(finding: report.Finding) -> None:
        findings.append(finding)
        if not as_json:
            typer.echo(report.line(finding))

    well = report.examine(context.obj, [*MACHINE, *MODEL], show)
    if as_json:
        typer.echo(report.document(findings, well=well))
    raise typer.Exit(0 if well else EXIT_FAILED)


def drain(
    *,
    url: AdminUrlOption,
    wait: Annotated[bool, typer.Option("--wait", help="Return when all streams have ended.")] = False,
    admin_key: AdminKeyOption = None,
) -> None:
    """Drain a running server: it accepts no new streams, and open ones may end. Suits preStop hooks."""
    state = ask_admin(url, "POST", "drain", admin_key)
    typer.echo(json.dumps(state))
    while wait and state["phase"] != "drained":
        time.sleep(POLL_S)
        state = ask_admin(url, "GET", "drain", admin_key, or_if_gone={"phase": "drained"})


engine = typer.Typer(help="Commands for the engine of a running server.", no_args_is_help=True)


@engine.command(cls=CheckedCommand)
def restart(*, url: AdminUrlOption, admin_key: AdminKeyOption = None) -> None:
    """Start a new engine process and move all streams to it, for example after an upgrade of the package.

    Clients notice a pause of less than a second and lose no word. The server needs --front-ends 1 or more.
    """
    typer.echo(json.dumps(ask_admin(url, "POST", "engine/restart", admin_key, timeout_s=RESTART_TIMEOUT_S)))


def ask_admin(
    url: str, method: str, path: str, admin_key: str | None, *, timeout_s: float = TIMEOUT_S, or_if_gone: Any = None
) -> Any:
    """Send a request to `/admin/PATH`, never through a proxy; `or_if_gone` is returned if the server is unreachable.

    Raises: typer.Exit, after one line with the reason.
    """
    try:
        return _answer(url, method, path, admin_key, timeout_s)
    except urllib.error.HTTPError as error:
        fail(f"{url}: {_refusal(error, admin_key)}")
    except (OSError, HTTPException) as error:
        if or_if_gone is not None:
            return or_if_gone
        fail(f"{url}: {getattr(error, 'reason', None) or error or type(error).__name__}")
    except ValueError:
        fail(f"{url}: the response is not JSON; is this the address of a tutti server?")


def _refusal(error: urllib.error.HTTPError, admin_key: str | None) -> str:
    """Return the reason for an HTTP error: the response body if it is plain text, else the status phrase."""
    if error.code == HTTPStatus.UNAUTHORIZED:
        return f"{error.code}: {NO_KEY if admin_key is None else 'not one of the admin keys of the server'}"
    plain = error.headers.get_content_type() == "text/plain"
    return f"{error.code}: {error.read(1_000).decode(errors='replace').strip() if plain else error.reason}"


def _answer(url: str, method: str, path: str, admin_key: str | None, timeout_s: float) -> Any:
    """Raises: OSError, HTTPException, ValueError."""
    headers = {"Authorization": f"Bearer {admin_key}"} if admin_key else {}
    request = urllib.request.Request(f"{url.rstrip('/')}/admin/{path}", method=method, headers=headers)  # noqa: S310
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(request, timeout=timeout_s) as answer:
        return json.load(answer)
