"""`tutti doctor` and `tutti drain`: what operators run beside a server."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from typing import Annotated, Any

import typer

from server.cli.errors import EXIT_FAILED, fail
from server.cli.options import JsonOption, printable, same_options_as, settings_from
from server.cli.serve import serve

POLL_S = 0.5
TIMEOUT_S = 5.0
HERE = "http://127.0.0.1:8080"
AdminUrlOption = Annotated[str, typer.Option(help="The server, as reached from here.")]
AdminKeyOption = Annotated[
    str | None, typer.Option(help="If the server has one.", envvar="TUTTI_ADMIN_KEY", callback=printable)
]


@same_options_as(serve)
def doctor(context: typer.Context, *, as_json: JsonOption = False, **_: Any) -> None:
    """Check installation, machine and model with the options and variables of `tutti serve`, and say what to mend.

    Exit status 1 if something would go wrong; warnings leave it at 0.
    """
    from server.tools import doctor as report
    from server.tools.doctor_access import CHECKS as ACCESS
    from server.tools.doctor_machine import CHECKS as MACHINE
    from server.tools.doctor_model import CHECKS as MODEL

    settings = settings_from({name: value for name, value in context.params.items() if name != "as_json"})
    findings: list[report.Finding] = []

    def tell(finding: report.Finding) -> None:
        findings.append(finding)
        if not as_json:
            typer.echo(report.line(finding))

    well = report.examine(settings, (*MACHINE, *ACCESS, *MODEL), tell)
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
