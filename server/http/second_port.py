"""A further port of a server process, which serves an app of its own: vosk clients without keys, or metrics."""

from __future__ import annotations

import asyncio

import structlog
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from server.configuration.addresses import interfaces, listening_hosts, open_address
from server.http.uvicorn_server import make_protocol
from server.replica import Replica

BACKLOG = 2_048  # connections that the kernel queues; uvicorn's value
_log: structlog.stdlib.BoundLogger = structlog.get_logger("tutti.second_port")


class SecondPort:
    """Server of an app on a port of its own, on the running event loop, from `start` to `stop`."""

    def __init__(self, app: ASGIApp, replica: Replica, port: int, *, scheme: str, **said: str) -> None:
        """`port` 0 selects a free one; `scheme` and `said` are for the log line of the start."""
        self._host = replica.settings.host
        self._wanted_port = port
        self._scheme, self._said = scheme, said
        self._state = ServerState()
        self._make_protocol = make_protocol(app, self._state, replica=replica)
        self._server: asyncio.Server | None = None
        self.port = 0  # set by `start`

    async def start(self) -> None:
        """Start listening. Raises: OSError if the address is in use."""
        loop = asyncio.get_running_loop()
        hosts, port = listening_hosts(self._host, self._wanted_port)
        self._server = await loop.create_server(self._make_protocol, hosts, port, backlog=BACKLOG)
        self.port = self._server.sockets[0].getsockname()[1]
        url = open_address(self._host, self.port, self._scheme)
        _log.info("listening", url=f"{url}/", **interfaces(self._host), **self._said)

    def protocol(self) -> asyncio.Protocol:
        """Return the protocol of a connection that was accepted elsewhere."""
        return self._make_protocol()

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._state.connections)

    def stop(self) -> None:
        """Stop listening, and end the remaining connections."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._state.connections):
            connection.shutdown()
