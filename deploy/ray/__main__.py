"""`python -m deploy.ray`: run the controller against a Ray cluster and an HAProxy."""

from __future__ import annotations

import logging
import signal
import threading
from typing import Annotated

import ray
import typer

from deploy.ray.controller import Controller, Plan
from deploy.ray.scaling import Rule


def main(
    *,
    address: Annotated[str, typer.Option(help="Of the Ray cluster; `local` starts one here.")] = "auto",
    haproxy: Annotated[str, typer.Option(help="Its runtime API: host:port, or a socket's path.")] = "127.0.0.1:9999",
    least: Annotated[int, typer.Option(help="Replicas at least.")] = 1,
    most: Annotated[int, typer.Option(help="Replicas at most.")] = 4,
    share: Annotated[float, typer.Option(help="Of their capacity that replicas should be filled to.")] = 0.7,
    down_after_s: Annotated[float, typer.Option(help="Fewer must do for so long before one drains.")] = 300.0,
    cpus: Annotated[float, typer.Option(help="Of each replica.")] = 2.0,
    gpus: Annotated[float, typer.Option(help="Of each replica; a share if several live on one.")] = 0.0,
    host: Annotated[str | None, typer.Option(help="Where replicas listen. Default: their node's address.")] = None,
    serve_option: Annotated[list[str] | None, typer.Option(help="Passed on to `tutti serve`; repeatable.")] = None,
) -> None:
    """Place, supervise and scale replicas with Ray; keep HAProxy's servers equal to them. Ctrl-C drains everybody."""
    try:
        rule = Rule(least, most, share, down_after_s)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    stop = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: stop.set())
    ray.init(address=None if address == "local" else address, include_dashboard=False, logging_level=logging.WARNING)
    plan = Plan(haproxy, rule, cpus=cpus, gpus=gpus, host=host, serve_options=tuple(serve_option or ()))
    Controller(plan).run(stop.is_set)
    ray.shutdown()


if __name__ == "__main__":
    typer.run(main)
