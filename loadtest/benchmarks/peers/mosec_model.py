"""The model of peer (c): a mosec worker, which batches by itself. States come with the request and go with the answer.

Started by `loadtest.benchmarks.peers.mosec_proxy`; mosec speaks only HTTP, so the proxy has the sockets.
"""

from __future__ import annotations

import gc
import json
import os

import numpy as np
from mosec import Server, Worker

from loadtest.benchmarks.peers.network import PeerNetwork

OPTIONS = "TUTTI_PEER_OPTIONS"
"""Our options come by the environment: mosec reads argv itself, and starts its workers as processes."""


class StepWorker(Worker):
    """Request: packed state, then PCM. Answer: number of rows in the batch, symbols, the next packed state."""

    def __init__(self) -> None:
        super().__init__()
        options = json.loads(os.environ[OPTIONS])
        self._network = PeerNetwork(threads=options["threads"], recorded=True)
        self._network.warm_up(range(1, options["max_batch"] + 1))
        gc.freeze()

    def deserialize(self, data: bytes) -> bytes:
        """Bytes as they came."""
        return data

    def serialize(self, data: bytes) -> bytes:
        """Bytes as they go."""
        return data

    def forward(self, data: list[bytes]) -> list[bytes]:
        """One step of each stream in the batch."""
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
