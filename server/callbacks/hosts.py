"""The allow-list of callbacks: hosts by name, and networks whose addresses may be private.

A URL is read by the library that connects, so that both agree on its host. Names are resolved once for each try, and
the connection is made to an address that was checked: a name that changes its address in between gains nothing.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Iterable

import httpx

from server.errors import ServerError, SettingsError

MAX_URL = 2_048
SCHEMES = ("http", "https")
PORTS = {"http": 80, "https": 443}
_NAME = re.compile(r"(?:\*\.)?[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?")
_NAT64 = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "64:ff9b:1::/48")))

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Forbidden(ServerError):
    """A URL that no result may be posted to; the message begins with what is wrong with it."""


class AllowedHosts:
    """Hosts that an operator allows: names, `*.name` for all names below one, addresses and networks."""

    def __init__(self, entries: Iterable[str]) -> None:
        """Raises: SettingsError."""
        self._names: set[str] = set()
        self._parents: list[str] = []
        self._networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        for entry in entries:
            try:
                self._networks.append(ipaddress.ip_network(entry, strict=False))
                continue
            except ValueError:
                name = entry.lower()
            if not _NAME.fullmatch(name):
                raise SettingsError(f"{entry!r} is no host; set results.example.org, *.example.org or 10.0.0.0/8")
            if name.startswith("*."):
                self._parents.append(name[1:])
            else:
                self._names.add(name)

    def check(self, text: str) -> httpx.URL:
        """Return the URL, whose host is allowed. Raises: Forbidden."""
        try:
            url = httpx.URL(text)
        except (httpx.InvalidURL, ValueError, TypeError):
            raise Forbidden("not a URL; send an address such as https://results.example.org/calls") from None
        if len(text) > MAX_URL:
            raise Forbidden(f"the URL has {len(text)} characters; at most {MAX_URL}")
        if url.scheme not in SCHEMES or not url.host:
            raise Forbidden("must be a URL that begins with http:// or https://")
        host = url.raw_host.decode("ascii").lower().rstrip(".")
        if (address := _address(host)) is not None:
            self._permit(address)
            listed = any(address in network for network in self._networks)
        else:
            listed = host in self._names or host.endswith(tuple(self._parents))
        if not listed:
            raise Forbidden(f"the host {host[:64]} is not one of TUTTI_CALLBACK_HOSTS")
        return url

    async def resolve(self, url: httpx.URL) -> list[str]:
        """Return the addresses of a checked URL's host, at least one. Raises: Forbidden, OSError."""
        port = url.port or PORTS[url.scheme]
        host = url.raw_host.decode("ascii")
        answers = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(name[0]) for _, _, _, _, name in answers))
        for address in addresses:
            self._permit(ipaddress.ip_address(address.partition("%")[0]))
        return addresses

    def _permit(self, address: Address) -> None:
        """Refuse an address that is not public, unless its network is listed. Raises: Forbidden."""
        if any(address in network for network in self._networks):
            return
        inner = _embedded(address)
        if not inner.is_global or inner.is_multicast:
            raise Forbidden(f"{address} is not a public address; the operator can list its network")


def _address(host: str) -> Address | None:
    """Return the address that a host is, None for a name."""
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def _embedded(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address leads to, else the address itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if any(address in network for network in _NAT64):
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour or address
