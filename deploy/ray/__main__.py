"""`python -m deploy.ray`: run the controller against a Ray cluster and an HAProxy."""

from __future__ import annotations

import logging
import signal
import threading
from typing import Annotated

import ray
import typer

from deploy.ray.controller import Controller, Plan
from deploy.ray.fleet import Rule


def main(
    *,
    address: Annotated[str, typer.Option(help="Address of the Ray cluster; `local` starts one here.")] = "auto",
    haproxy: Annotated[
        str, typer.Option(help="HAProxy's runtime API: host:port, or the path of a socket.")
    ] = "127.0.0.1:9999",
    least: Annotated[int, typer.Option(help="Minimum number of replicas.")] = 1,
    most: Annotated[int, typer.Option(help="Maximum number of replicas.")] = 4,
    share: Annotated[float, typer.Option(help="Target load as a share of the replicas' capacity.")] = 0.7,
    down_after_s: Annotated[
        float, typer.Option(help="Seconds for which fewer replicas must suffice before one drains.")
    ] = 300.0,
    cpus: Annotated[float, typer.Option(help="CPU cores per replica.")] = 2.0,
    gpus: Annotated[float, typer.Option(help="GPUs per replica; a fraction if several share one.")] = 0.0,
    host: Annotated[
        str | None, typer.Option(help="Address that replicas listen on. Default: their node's address.")
    ] = None,
    serve_option: Annotated[list[str] | None, typer.Option(help="Option for `tutti serve`; repeatable.")] = None,
) -> None:
    """Place, supervise and scale replicas with Ray, and update HAProxy's servers. Ctrl-C drains all replicas."""
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
