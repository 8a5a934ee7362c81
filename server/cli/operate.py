"""`tutti doctor` and `tutti drain`: what operators run beside a server."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from typing import Annotated, Any

import typer

from server.cli.errors import EXIT_FAILED, fail
from server.cli.options import DEVICES, PRECISIONS, JsonOption, ModelOption, printable, settings_from

POLL_S = 0.5
TIMEOUT_S = 5.0
HERE = "http://127.0.0.1:8080"
AdminUrlOption = Annotated[str, typer.Option(help="The server, as reached from here.")]
AdminKeyOption = Annotated[
    str | None, typer.Option(help="If the server has one.", envvar="TUTTI_ADMIN_KEY", callback=printable)
]


def doctor(
    context: typer.Context,
    *,
    host: Annotated[str | None, typer.Option(help="Address that the server is to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Its port.")] = None,
    model: ModelOption = None,
    device: Annotated[str | None, typer.Option(help=DEVICES)] = None,
    precision: Annotated[str | None, typer.Option(help=PRECISIONS)] = None,
    decoder: Annotated[str | None, typer.Option(help="auto, greedy or beam.")] = None,
    max_streams: Annotated[str | None, typer.Option(help="Streams at a time.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Check installation, machine and model with the settings that `tutti serve` would take, and say what to mend.

    Exit status 1 if something would go wrong; warnings leave it at 0.
    """
    from server.tools import doctor as report
    from server.tools.doctor_machine import CHECKS as MACHINE
    from server.tools.doctor_model import CHECKS as MODEL

    settings = settings_from({name: value for name, value in context.params.items() if name != "as_json"})
    findings: list[report.Finding] = []

    def tell(finding: report.Finding) -> None:
        findings.append(finding)
        if not as_json:
            typer.echo(report.line(finding))

    well = report.examine(settings, (*MACHINE, *MODEL), tell)
    if as_json:
        typer.echo(report.document(findings, well=well))
    raise typer.Exit(0 if well else EXIT_FAILED)


def drain(
    *,
    url: AdminUrlOption = HERE,
    wait: Annotated[bool, typer.Option("--wait", help="Return when nobody is left.")] = False,
    admin_key: AdminKeyOption = None,
) -> None:
    """Begin the drain of a running server: no new streams, the open ones may end; for preStop hooks and people."""
    try:
        state = ask_admin(url, "POST", "drain", admin_key)
        typer.echo(json.dumps(state))
        while wait and state["phase"] != "drained":
            time.sleep(POLL_S)
            try:
                state = ask_admin(url, "GET", "drain", admin_key)
            except urllib.error.HTTPError:
                raise
            except OSError:  # it is gone
                return
    except OSError as error:  # what urllib raises
        fail(f"{url}: {error}")


def ask_admin(url: str, method: str, path: str, admin_key: str | None, timeout_s: float = TIMEOUT_S) -> Any:
    """Ask what stands below `/admin/`; never through a proxy. Raises: OSError."""
    headers = {"Authorization": f"Bearer {admin_key}"} if admin_key else {}
    if not url.startswith(("http://", "https://")):
        raise OSError("http:// or https:// is needed")
    request = urllib.request.Request(f"{url.rstrip('/')}/admin/{path}", method=method, headers=headers)  # noqa: S310
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(request, timeout=timeout_s) as answer:
        return json.load(answer)
