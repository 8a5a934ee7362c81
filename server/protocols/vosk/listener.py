"""A port of its own for vosk-server's clients, many of which are fixed to `ws://host:2700/` and send no key.

Nothing else is served there, and everybody who reaches it is let in: the operator opens it by a setting, on the address
that the server listens on.
"""

from __future__ import annotations

import asyncio
from functools import partial

import structlog
from fastapi import FastAPI
from uvicorn.server import ServerState

from server.access.guard import Door
from server.http.uvicorn_server import head_protocol
from server.protocols.vosk.endpoint import VoskEndpoint
from server.replica import Replica

_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.vosk")


class VoskListener:
    """Listens from `start` to `stop`, on the running loop."""

    def __init__(self, endpoint: VoskEndpoint, replica: Replica, door: Door, port: int) -> None:
        """`port` 0 picks a free one."""
        self._app = FastAPI(openapi_url=None)
        self._app.state.replica, self._app.state.door = replica, door
        self._app.add_api_websocket_route("/{path:path}", endpoint.live_open)
        self._settings = replica.settings
        self._wanted = port
        self._state = ServerState()
        self._server: asyncio.Server | None = None
        self.port = 0  # known once it listens

    async def start(self) -> None:
        """Listen. Raises: OSError if the address is taken."""
        from server.serve import uvicorn_config  # which imports the app that this is a part of

        config = uvicorn_config(self._app, self._settings)
        config.load()
        make = head_protocol(self._settings.handshake_timeout_s)
        protocol = partial(make, config=config, server_state=self._state, app_state={})
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(protocol, config.host, self._wanted, backlog=config.backlog)
        self.port = self._server.sockets[0].getsockname()[1]
        _log.info("listening", url=f"ws://{config.host}:{self.port}/", protocol="vosk", keys="none needed")

    def stop(self) -> None:
        """Listen no more, and end the connections that are left."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._state.connections):
            connection.shutdown()
