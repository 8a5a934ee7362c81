"""Addresses that a server listens on: as settings give them, as the event loop takes them, and as URLs to open."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from urllib.parse import parse_qsl

from server.configuration.variables import spelled
from server.errors import AddressError

IPV4, IPV6 = "0.0.0.0", "::"  # noqa: S104 - every interface, which an operator may ask for
HERE = "127.0.0.1"
MAX_PORT = 65_535
HOST_NAME = re.compile(r"[A-Za-z0-9._-]{1,253}")


def listen_host(text: str) -> str:
    """Return an address to listen on without brackets, or the name of a host. Raises: ValueError."""
    host = text.strip()
    if host.startswith("[") and host.endswith("]") and ":" in host:
        host = host[1:-1]
    try:
        return ipaddress.ip_address(host).compressed
    except ValueError:
        if HOST_NAME.fullmatch(host):
            return host
    raise ValueError(
        "is not an address to listen on: give a host's name, 127.0.0.1, ::1, "
        f"or {IPV4} or {IPV6} for all interfaces; the port has an option of its own"
    )


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Address of one port, and the parameters of its streams where clients cannot send any."""

    host: str
    port: int
    parameters: tuple[tuple[str, str], ...] = ()

    @property
    def is_local(self) -> bool:
        """Whether only programs on this machine reach it."""
        with contextlib.suppress(ValueError):
            return ipaddress.ip_address(self.host).is_loopback
        return self.host == "localhost"


def listen_address(text: str) -> ListenAddress:
    """Read `PORT`, for this machine alone, or `HOST:PORT`; then, after a `?`, parameters. Raises: ValueError."""
    where, _, query = text.partition("?")
    host, colon, port = where.rpartition(":")
    if not (port.isascii() and port.isdecimal() and int(port[:6]) <= MAX_PORT):
        raise ValueError("must be PORT or HOST:PORT, the port from 0 to 65535, such as 0.0.0.0:10300")
    try:
        parameters = tuple(parse_qsl(query, strict_parsing=True)) if query else ()
    except ValueError:
        raise ValueError("after the ? must come NAME=VALUE, with & between several") from None
    return ListenAddress(listen_host(host) if colon else HERE, int(port), parameters)


def open_address(host: str, port: int | str, scheme: str = "http") -> str:
    """Return the URL at which a client on this machine reaches what listens on `host`: `http://[::1]:8080`."""
    host = HERE if host in (IPV4, IPV6) else host.replace("%", "%25")  # of a zone. Source: RFC 6874
    return f"{scheme}://{host_port(host, port)}"


def host_port(host: str, port: int | str) -> str:
    """Return host and port as one text, with brackets around IPv6: `[::1]:8080`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def interfaces(host: str) -> dict[str, str]:
    """Return the note for a log line's address that the server listens on all interfaces; empty for other hosts."""
    return {"interfaces": "all"} if host in (IPV4, IPV6) else {}


def listening_hosts(host: str, port: int) -> tuple[Sequence[str], int]:
    """Return the hosts and the port for an event loop's `create_server`: of `::` IPv4's addresses, too.

    Event loops listen on `::` for IPv6 alone, and give each host another free port for port 0.
    """
    if host != IPV6:
        return (host,), port
    if port == 0:
        with (
            contextlib.suppress(OSError),  # without IPv6: the event loop says so
            socket.create_server((IPV6, 0), family=socket.AF_INET6, dualstack_ipv6=True) as free,
        ):
            port = free.getsockname()[1]
    return (IPV4, IPV6), port


def bound(host: str, port: int) -> list[socket.socket]:
    """Return sockets bound to all addresses of a host, which do not listen yet. Raises: OSError, also if in use."""
    hosts, port = listening_hosts(host, port)
    opened: list[socket.socket] = []
    try:
        for given in hosts:
            for family, kind, protocol, _, address in socket.getaddrinfo(
                given, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            ):
                listener = socket.socket(family, kind, protocol)
                opened.append(listener)
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                listener.bind(address)
                listener.setblocking(False)
    except OSError:
        for listener in opened:
            listener.close()
        raise
    return opened


def bound_for(setting: str, address: ListenAddress) -> list[socket.socket]:
    """Return the sockets of the port of a setting; see `bound`. Raises: AddressError."""
    host, port = address.host, address.port
    try:
        return bound(host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            advice = f"stop the process that uses this port, or choose another {spelled(setting)}"
        elif error.errno == errno.EACCES:
            advice = f"choose a port of 1024 or more: {spelled(setting)}"
        else:
            of_host = spelled("host" if setting in {"port", "vosk_port", "metrics_port"} else setting)
            advice = f"correct {of_host}: an address of this machine, such as {HERE} or {IPV4}"
        raise AddressError(f"{setting}: {host_port(host, port)}: {error.strerror}; {advice}") from error


def check_addresses(addresses: Mapping[str, ListenAddress]) -> None:
    """Check that the ports, by their settings, differ and are free; port 0 is. Raises: AddressError."""
    for (first, address), (second, other) in combinations(addresses.items(), 2):
        if address.port and address.port == other.port:
            raise AddressError(f"{second}: {other.port} is also the {first}; choose another {spelled(second)}")
    for setting, address in addresses.items():
        if address.port:
            for listener in bound_for(setting, address):
                listener.close()
