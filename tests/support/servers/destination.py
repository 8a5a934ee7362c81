"""An operator's WebSocket that receives the text of calls."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from websockets.sync.server import ServerConnection, serve

from tests.support.servers.fakes import WAIT_S

Json = dict[str, Any]


@contextmanager
def destination() -> Iterator[tuple[str, queue.SimpleQueue[Json | None]]]:
    """Run an operator's WebSocket; yield its URL and the received frames, None at the end of a connection."""
    received: queue.SimpleQueue[Json | None] = queue.SimpleQueue()

    def listen(connection: ServerConnection) -> None:
        for frame in connection:
            received.put(json.loads(frame))
        received.put(None)

    with serve(listen, "127.0.0.1", 0) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        try:
            yield f"ws://127.0.0.1:{listening.socket.getsockname()[1]}/", received
        finally:
            listening.shutdown()
            thread.join(timeout=WAIT_S)


def received_frames(received: queue.SimpleQueue[Json | None]) -> list[Json]:
    """Return the frames of one connection, up to its end."""
    frames: list[Json] = []
    while (frame := received.get(timeout=WAIT_S)) is not None:
        frames.append(frame)
    return frames
