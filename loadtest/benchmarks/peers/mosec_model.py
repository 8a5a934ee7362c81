"""Model of peer (c): a mosec worker with mosec's batching. States are part of requests and responses.

Started by `loadtest.benchmarks.peers.mosec_proxy`, which has the WebSockets, since mosec supports only HTTP.
"""

from __future__ import annotations

import gc
import json
import os

import numpy as np
from mosec import Server, Worker

from loadtest.benchmarks.peers.network import PeerNetwork

OPTIONS = "TUTTI_PEER_OPTIONS"
"""Variables for our options: mosec reads argv itself, and starts its workers as processes."""


class StepWorker(Worker):
    """Request: packed state, then PCM. Response: number of rows in the batch, symbols, next packed state."""

    def __init__(self) -> None:
        super().__init__()
        options = json.loads(os.environ[OPTIONS])
        self._network = PeerNetwork(threads=options["threads"], recorded=True)
        self._network.warm_up(range(1, options["max_batch"] + 1))
        gc.freeze()

    def deserialize(self, data: bytes) -> bytes:
        """Return the request's bytes unchanged."""
        return data

    def serialize(self, data: bytes) -> bytes:
        """Return the response's bytes unchanged."""
        return data

    def forward(self, data: list[bytes]) -> list[bytes]:
        """Run one step of each stream in the batch."""
        at = self._network.row_bytes
        rows = [np.frombuffer(one, np.uint8, at) for one in data]
        symbols, after = self._network.step_rows([one[at:] for one in data], rows)
        size = len(data).to_bytes(2, "little")
        return [size + bytes(found) + row.tobytes() for found, row in zip(symbols, after, strict=True)]


if __name__ == "__main__":
    settings = json.loads(os.environ[OPTIONS])
    server = Server()
    server.append_worker(
        StepWorker,
        num=settings["workers"],
        max_batch_size=settings["max_batch"],
        max_wait_time=settings["max_wait_ms"],
        timeout=60,
    )
    server.run()
