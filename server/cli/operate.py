"""The options of `tutti doctor` and `tutti drain`. Everything of weight is imported when a command runs."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Annotated, Any

import typer

EXIT_FAILED = 1
POLL_S = 0.5
TIMEOUT_S = 5.0


def doctor(
    context: typer.Context,
    *,
    host: Annotated[str | None, typer.Option(help="Address that the server is to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Its port.")] = None,
    model: Annotated[Path | None, typer.Option(help="A .safetensors checkpoint. Default: the shipped model.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.")] = None,
    precision: Annotated[str | None, typer.Option(help="auto, fp32, bf16, fp16 (GPU) or int8 (CPU).")] = None,
    decoder: Annotated[str | None, typer.Option(help="auto, greedy or beam.")] = None,
    max_streams: Annotated[str | None, typer.Option(help="Streams at a time.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document as the last line.")] = False,
) -> None:
    """Check installation, machine and model with the settings that `tutti serve` would take, and say what to mend.

    Exit status 1 if something would go wrong; warnings leave it at 0.
    """
    from pydantic import ValidationError

    from server.settings import Settings
    from server.tools import doctor as report
    from server.tools.doctor_machine import CHECKS as MACHINE
    from server.tools.doctor_model import CHECKS as MODEL

    given = {name: value for name, value in context.params.items() if name != "as_json" and value is not None}
    try:
        settings = Settings(**given)
    except ValidationError as error:
        for problem in error.errors():
            typer.echo(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}", err=True)
        raise typer.Exit(2) from None
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
    url: Annotated[str, typer.Option(help="The server, as reached from here.")] = "http://127.0.0.1:8080",
    wait: Annotated[bool, typer.Option("--wait", help="Return when nobody is left.")] = False,
    admin_key: Annotated[str | None, typer.Option(help="If the server has one.", envvar="TUTTI_ADMIN_KEY")] = None,
) -> None:
    """Begin the drain of a running server: no new streams, the open ones may end; for preStop hooks and people."""
    try:
        state = _ask(url, "POST", admin_key)
        typer.echo(json.dumps(state))
        while wait and state["phase"] != "drained":
            time.sleep(POLL_S)
            try:
                state = _ask(url, "GET", admin_key)
            except urllib.error.HTTPError:
                raise
            except OSError:  # it is gone
                return
    except OSError as error:  # what urllib raises
        typer.echo(f"tutti: {url}: {error}", err=True)
        raise typer.Exit(EXIT_FAILED) from error


def _ask(url: str, method: str, admin_key: str | None) -> dict[str, Any]:
    """Ask `/admin/drain`; never through a proxy. Raises: OSError."""
    headers = {"Authorization": f"Bearer {admin_key}"} if admin_key else {}
    if not url.startswith(("http://", "https://")):
        raise OSError("http:// or https:// is needed")
    request = urllib.request.Request(f"{url.rstrip('/')}/admin/drain", method=method, headers=headers)  # noqa: S310
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(request, timeout=TIMEOUT_S) as answer:
        state: dict[str, Any] = json.load(answer)
    return state
