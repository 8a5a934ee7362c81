"""Update of HAProxy's servers to the current replicas: the commands for each change, and the socket to send them.

The configuration has a fixed number of places (`server-template`), all in maintenance; a place gets an address and is
made ready. A place with a draining replica gets no new streams and keeps its open ones.
Source: HAProxy 2.6 management guide, 9.3, "set server".
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

TIMEOUT_S = 2.0


class State(StrEnum):
    """State of a place, as named by HAProxy."""

    READY = "ready"
    DRAIN = "drain"


class NoPlace(Exception):
    """There are more replicas than places in the configuration."""


class HAProxyError(Exception):
    """HAProxy does not answer, or rejects a command, named in the message."""


@dataclass(frozen=True, slots=True)
class Backend:
    """Address of a replica, `host:port` or `[IPv6]:port`, and its state in HAProxy."""

    address: str
    state: State


class Places:
    """Assignment of replicas to places. Pure: `change` returns commands."""

    def __init__(self, count: int, backend: str = "replicas", prefix: str = "replica") -> None:
        self._free = [f"{backend}/{prefix}{number}" for number in range(count, 0, -1)]
        self._taken: dict[str, tuple[str, Backend]] = {}

    def change(self, wanted: Mapping[str, Backend]) -> list[str]:
        """Return the commands to set HAProxy's servers to `wanted`, by replica name. Raises: NoPlace."""
        commands = []
        for name in [name for name in self._taken if name not in wanted]:
            place, _ = self._taken.pop(name)
            self._free.append(place)
            # Cut streams that are still open to the lost replica, so that they resume elsewhere at once.
            commands += [f"set server {place} state maint", f"shutdown sessions server {place}"]
        for name, backend in wanted.items():
            commands += self._put(name, backend)
        return commands

    def everything(self) -> list[str]:
        """Return the commands to set all places, for an HAProxy in an unknown state."""
        commands = [f"set server {place} state maint" for place in self._free]
        for place, backend in self._taken.values():
            commands += _set(place, backend)
        return commands

    def _put(self, name: str, backend: Backend) -> list[str]:
        if name in self._taken:
            place, before = self._taken[name]
            if before == backend:
                return []
        elif self._free:
            place = self._free.pop()
        else:
            raise NoPlace("more replicas than places in HAProxy's configuration: raise the range of server-template")
        self._taken[name] = (place, backend)
        return _set(place, backend)


def _set(place: str, backend: Backend) -> list[str]:
    host, port = _split(backend.address)
    return [f"set server {place} addr {host} port {port}", f"set server {place} state {backend.state}"]


def _split(address: str) -> tuple[str, int]:
    """Return host and port of `10.0.0.1:80` and of `[::1]:80`."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


class RuntimeApi:
    """Client of HAProxy's runtime API at `host:port` or at the path of a socket."""

    def __init__(self, where: str) -> None:
        self._where = where

    def send(self, command: str) -> str:
        """Send one command and return its answer. Raises: HAProxyError."""
        try:
            with self._connect() as connection:
                connection.sendall(command.encode() + b"\n")
                answer = b"".join(iter(lambda: connection.recv(65_536), b"")).decode().strip()
        except OSError as error:
            raise HAProxyError(f"HAProxy's runtime API at {self._where}: {error}") from error
        if command.startswith(("set server", "shutdown")) and answer and "chang" not in answer:
            raise HAProxyError(f"{command}: {answer}")
        return answer

    def _connect(self) -> socket.socket:
        if self._where.startswith("/"):
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(TIMEOUT_S)
            connection.connect(self._where)
            return connection
        return socket.create_connection(_split(self._where), TIMEOUT_S)
