"""Shipped proxies in front of test servers, and clients that connect through them."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
from websockets.sync.client import connect

from tests.support.needs import missing
from tests.support.servers.fakes import WAIT_S
from tests.support.servers.live_server import RAW, Client, LiveServer
from tutti_asr_lab.trials.proxies import PROXIES, Ports, Proxy, Running

# Shortened health check intervals. Check timeouts stay as shipped: the tests' servers share one process, and a server
# delayed by another one must not count as failed.
SHORT_INTERVALS = {
    "haproxy": (("check inter 1s fastinter 500ms downinter 1s", "check inter 100ms"),),
    "nginx": (),
    "envoy": ((" interval: 1s", " interval: 0.1s"), ("no_traffic_interval: 1s", "no_traffic_interval: 0.1s")),
}


@dataclass(frozen=True, slots=True)
class Tls:
    """A certificate as one PEM file with its key, and as two files `tls.crt` and `tls.key` in a folder."""

    both: Path
    folder: Path


@dataclass(frozen=True, slots=True)
class EditedProxy(Proxy):
    """A shipped proxy whose configuration is edited, with its variant for TLS if there is a certificate."""

    tls: Tls | None
    change: Callable[[str], str]

    def lay_out(self, ports: Ports, replicas: Sequence[int], folder: Path) -> tuple[Path, dict[str, str]]:
        """As `Proxy`, with the certificate."""
        config, env = Proxy.lay_out(self, ports, replicas, folder)
        text = config.read_text(encoding="utf-8")
        if self.tls is not None:
            text = text.replace("#tls: ", "")
            env["TUTTI_CERT"] = str(self.tls.both)
            place = folder / "tls"
            place.mkdir()
            for file in (self.tls.folder / "tls.crt", self.tls.folder / "tls.key"):
                shutil.copy(file, place / file.name)
            extra = self.config.with_name("tls.conf")
            if extra.exists():
                lines = extra.read_text(encoding="utf-8").replace("/etc/nginx/tutti", str(place))
                lines = lines.replace("listen 8443", f"listen 127.0.0.1:{ports.tls}").replace("8443", str(ports.tls))
                (place / extra.name).write_text(lines, encoding="utf-8")
        config.write_text(self.change(text), encoding="utf-8")
        return config, env


def need(name: str) -> Proxy:
    """Return the proxy; if it is not installed, skip the test, or fail in CI."""
    proxy = PROXIES[name]
    if proxy.found() is None:
        missing(f"{proxy.program} not installed")
    return proxy


def edited(*changes: tuple[str, str]) -> Callable[[str], str]:
    """Replace texts in a configuration; each must occur exactly once."""

    def edit(text: str) -> str:
        for old, new in changes:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        return text

    return edit


@contextmanager
def proxied(
    name: str, *servers: LiveServer | int, tls: Tls | None = None, changes: tuple[tuple[str, str], ...] = ()
) -> Iterator[Running]:
    """Run the proxy in front of servers or ports, in the order of its configuration, with frequent health checks."""
    ports = [server if isinstance(server, int) else int(server.host.rsplit(":", 1)[1]) for server in servers]
    shipped = {field.name: getattr(need(name), field.name) for field in fields(Proxy)}
    proxy = EditedProxy(**shipped, tls=tls, change=edited(*SHORT_INTERVALS[name], *changes))
    with proxy.running(ports) as running:
        if tls is None:
            wait_until_served(running)
        if name == "envoy":  # a server counts as failed until its first health check
            wait_until(lambda: healthy_to_envoy(running) >= sum(not isinstance(each, int) for each in servers))
        yield running


def wait_until_served(running: Running) -> None:
    """Wait until the proxy forwards requests; Envoy and HAProxy first check health."""
    with httpx.Client(base_url=running.url.replace("ws", "http"), timeout=WAIT_S) as client:
        wait_until(lambda: client.get("/v1/status").status_code == 200)


def healthy_to_envoy(running: Running) -> int:
    """Return the number of servers that Envoy counts as healthy."""
    return int(_envoy_stats(running, "replicas.membership_healthy$").split()[-1])


def first_server_is_draining(name: str, running: Running) -> bool:
    """Whether the proxy sends no new streams to the first server; always true for nginx, which has no health checks."""
    if name == "envoy":
        return healthy_to_envoy(running) == 1
    if name == "haproxy":
        line = 'haproxy_server_status{proxy="replicas",server="replica-1",state="NOLB"} 1'
        return line in httpx.get(f"http://127.0.0.1:{running.ports.figures}/metrics", timeout=WAIT_S).text
    return True


def _envoy_stats(running: Running, names: str) -> str:
    figures = f"http://127.0.0.1:{running.ports.control}/stats"
    return httpx.get(figures, params={"filter": names}, timeout=WAIT_S).text


def wait_until(holds: Callable[[], bool], every_s: float = 0.02, within_s: float = WAIT_S) -> None:
    """Poll a condition of another process. Raises: AssertionError after `within_s`."""
    pause = threading.Event()
    for _ in range(round(within_s / every_s)):
        if holds():
            return
        pause.wait(every_s)
    raise AssertionError("it never came to hold")


def listen(running: Running, **query: Any) -> Client:
    """Open a live stream through the proxy. The client offers compression, as most do."""
    url = f"{running.url}/v1/listen?{urlencode(RAW | query)}"
    return Client(connect(url, compression="deflate", open_timeout=WAIT_S, close_timeout=WAIT_S, proxy=None))


def http(running: Running) -> httpx.Client:
    """Return an HTTP client for requests through the proxy."""
    return httpx.Client(base_url=running.url.replace("ws", "http"), timeout=WAIT_S)


def closed_port() -> int:
    """Return a free port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class Hang:
    """Block a server's event loop within a `with` block: its sockets stay open but silent."""

    def __init__(self, server: LiveServer) -> None:
        self._server = server
        self._stopped = threading.Event()
        self._go = threading.Event()

    def __enter__(self) -> None:
        self._server.server.loop.call_soon_threadsafe(self._block)
        assert self._stopped.wait(WAIT_S)

    def __exit__(self, *_: object) -> None:
        self._go.set()

    def _block(self) -> None:
        self._stopped.set()
        self._go.wait(timeout=2 * WAIT_S)
