"""Idle streams that occupy the server's capacity."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Sequence
from typing import Self

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tests.ecosystem.serving import ServerProcess

KEEP_ALIVE_S = 0.3  # well within the shortest idle limit
GONE_WITHIN_S = 10.0
QUERY = "encoding=linear16&sample_rate=16000"


class Holders:
    """One stream per key, open inside a `with` block or until `release`."""

    def __init__(self, server: ServerProcess, keys: Sequence[str]) -> None:
        self._server = server
        self._keys = keys
        self._open = contextlib.ExitStack()
        self._let_go = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="holders")

    def __enter__(self) -> Self:
        url = f"ws://127.0.0.1:{self._server.port}/v1/listen?{QUERY}"
        with self._open:  # one that is refused leaves none open
            self._sockets = [
                self._open.enter_context(connect(url, additional_headers={"Authorization": f"Token {key}"}))
                for key in self._keys
            ]
            self._open = self._open.pop_all()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """End the streams, and return once the server has released one of them; the others follow."""
        if self._let_go.is_set():
            return
        self._let_go.set()
        self._thread.join()
        for socket in self._sockets:
            socket.send(json.dumps({"type": "CloseStream"}))
            with contextlib.suppress(ConnectionClosed):
                while True:
                    socket.recv(timeout=GONE_WITHIN_S)
        self._open.close()
        if self._keys:
            self._server.wait_for_streams(len(self._keys) - 1)

    def _keep(self) -> None:
        while not self._let_go.wait(KEEP_ALIVE_S):
            for socket in self._sockets:
                socket.send(json.dumps({"type": "KeepAlive"}))
