"""Addresses that a server listens on: as settings give them, as the event loop takes them, and as URLs to open."""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
from collections.abc import Sequence

IPV4, IPV6 = "0.0.0.0", "::"  # noqa: S104 - every interface, which an operator may ask for
HERE = "127.0.0.1"
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


def open_address(host: str, port: int, scheme: str = "http") -> str:
    """Return the URL at which a client on this machine reaches what listens on `host`: `http://[::1]:8080`."""
    host = HERE if host in (IPV4, IPV6) else host.replace("%", "%25")  # of a zone. Source: RFC 6874
    return f"{scheme}://{host_port(host, port)}"


def host_port(host: str, port: int) -> str:
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
