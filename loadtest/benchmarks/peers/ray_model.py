"""Peer (b): Ray Serve. A FastAPI ingress keeps each stream's socket and state; a model deployment batches the steps.

`@serve.batch` gathers the calls that wait while a batch runs. Each call and response includes the state, packed into an
array, since Ray's calls have no affinity to a process.
"""

import gc
import logging
import os
import signal
import threading
from collections.abc import Sequence
from typing import Annotated, Any, cast

import numpy as np
import ray
import typer
from fastapi import FastAPI, WebSocket
from ray import serve
from ray.serve.config import HTTPOptions
from ray.serve.schema import LoggingConfig

from loadtest.benchmarks.peers.network import PeerNetwork, Row
from loadtest.benchmarks.peers.service import BatchSizes, StepSession, converse

CALLS = 4096
"""Limit of concurrent calls: more than the streams of any level."""

ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0"}
"""Inherited by Ray's workers, like OMP_NUM_THREADS, without which torch uses two threads in each of them and
half as many streams are sustained. Ray's option RAY_SERVE_THROUGHPUT_OPTIMIZED was tried: no more streams."""

app = FastAPI()


@serve.deployment(max_ongoing_requests=CALLS, ray_actor_options={"num_cpus": 0})
class Model:
    """Runs batches of steps."""

    def __init__(self, threads: int, max_batch: int, wait_s: float) -> None:
        self._network = PeerNetwork(threads=threads, recorded=True)
        self._network.warm_up(range(1, max_batch + 1))
        self._sizes = BatchSizes()
        self.step.set_max_batch_size(max_batch)
        self.step.set_batch_wait_timeout_s(wait_s)
        gc.freeze()

    @serve.batch
    async def step(self, pcm: list[bytes], rows: list[Row]) -> list[tuple[list[int], Row]]:
        """Run one step of each stream in the batch."""
        self._sizes.ran(len(pcm))
        symbols, after = self._network.step_rows(pcm, rows)
        return list(zip(symbols, after, strict=True))

    async def batches(self) -> dict[str, float]:
        """Return the number of batches by size."""
        return self._sizes.as_json()


@serve.deployment(max_ongoing_requests=CALLS, ray_actor_options={"num_cpus": 0})
@serve.ingress(app)
class Ingress:
    """Holds sockets and states."""

    def __init__(self, model: Any) -> None:
        network = PeerNetwork(threads=1, recorded=False)
        self._model, self._card, self._row_bytes = model, network.card, network.row_bytes
        gc.freeze()

    def fresh(self) -> Row:
        """Return the packed state of a new stream."""
        return np.zeros(self._row_bytes, np.uint8)

    async def step(self, pcm: bytes, state: Row) -> tuple[Sequence[int], Row]:
        """Run one step in a batch formed by Ray."""
        symbols, after = await self._model.step.remote(pcm, state)
        return symbols, after

    @app.get("/readyz")
    async def ready(self) -> dict[str, bool]:
        """Respond when the model is ready."""
        await self.step(bytes(self._card.step_bytes), self.fresh())
        return {"ready": True}

    @app.get("/batches")
    async def batches(self) -> dict[str, float]:
        """Return the number of batches by size."""
        found: dict[str, float] = await self._model.batches.remote()
        return found

    @app.websocket("/v1/listen")
    async def listen(self, socket: WebSocket) -> None:
        """Serve one stream."""
        await converse(socket, StepSession(self._card, self))


def main(
    *,
    port: Annotated[int, typer.Option()],
    threads: Annotated[int, typer.Option(help="Threads of torch.")] = 1,
    max_batch: Annotated[int, typer.Option()] = 64,
    max_wait_ms: Annotated[float, typer.Option(help="Time that a batch waits to fill, ms.")] = 0.0,
) -> None:
    """Serve until stopped."""
    stop = threading.Event()
    os.environ |= ENVIRONMENT | {"OMP_NUM_THREADS": str(threads)}
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
        logging_level=logging.WARNING,
        object_store_memory=200 << 20,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    quiet = LoggingConfig(enable_access_log=False, log_level="WARNING")
    serve.start(http_options=HTTPOptions(host="127.0.0.1", port=port), logging_config=quiet)
    model, ingress = cast(Any, Model), cast(Any, Ingress)
    bound = ingress.bind(model.bind(threads, max_batch, max_wait_ms * 1e-3))
    serve.run(bound, logging_config=quiet)
    stop.wait()
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    typer.run(main)
