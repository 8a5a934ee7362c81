"""The shipped proxies in front of the test's own servers, and clients that go through them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

import httpx
from fakes import WAIT_S
from live_server import RAW, Client, LiveServer
from needs import missing
from websockets.sync.client import connect

from loadtest.failover.proxies import PROXIES, Proxy, Running, Tls

# How often the proxies look, shortened. How long they wait for an answer stays as shipped: the tests' servers share one
# process, and one that is kept waiting by another must not count as dead.
SOON = {
    "haproxy": (("check inter 1s fastinter 500ms downinter 1s", "check inter 100ms"),),
    "nginx": (),
    "envoy": ((" interval: 1s", " interval: 0.1s"), ("no_traffic_interval: 1s", "no_traffic_interval: 0.1s")),
}


def need(name: str) -> Proxy:
    """The proxy; where it is not installed the test is skipped, in CI it fails."""
    proxy = PROXIES[name]
    if proxy.found() is None:
        missing(f"{proxy.program} not installed")
    return proxy


def edited(*changes: tuple[str, str]) -> Callable[[str], str]:
    """Replace these in a configuration; each must be there once."""

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
    """The proxy before servers, or before ports, which the file lists in this order; health is looked at often."""
    ports = [server if isinstance(server, int) else int(server.host.rsplit(":", 1)[1]) for server in servers]
    with need(name).running(ports, tls=tls, change=edited(*SOON[name], *changes)) as running:
        if tls is None:
            wait_until_served(running)
        if name == "envoy":  # until it has asked a server, it counts as dead
            wait_until(lambda: healthy_to_envoy(running) == sum(not isinstance(each, int) for each in servers))
        yield running


def wait_until_served(running: Running) -> None:
    """Until the proxy gives requests to a server: Envoy and HAProxy ask for health first."""
    with httpx.Client(base_url=running.url.replace("ws", "http"), timeout=WAIT_S) as client:
        wait_until(lambda: client.get("/readyz").status_code == 200)


def healthy_to_envoy(running: Running) -> int:
    """How many servers it gives streams to."""
    return int(_of_envoy(running, "replicas.membership_healthy$").split()[-1])


def knows_that_the_first_drains(name: str, running: Running) -> bool:
    """Whether the proxy has heard of it, and leaves it in peace. nginx asks nobody: it hears of it by a refusal."""
    if name == "envoy":
        return healthy_to_envoy(running) == 1
    if name == "haproxy":
        line = 'haproxy_server_status{proxy="replicas",server="replica-1",state="NOLB"} 1'
        return line in httpx.get(f"http://127.0.0.1:{running.ports.figures}/metrics", timeout=WAIT_S).text
    return True


def _of_envoy(running: Running, names: str) -> str:
    figures = f"http://127.0.0.1:{running.ports.control}/stats"
    return httpx.get(figures, params={"filter": names}, timeout=WAIT_S).text


def wait_until(holds: Callable[[], bool], every_s: float = 0.02) -> None:
    """Ask a process that tells nothing by itself. Fails after a while."""
    pause = threading.Event()
    for _ in range(round(WAIT_S / every_s)):
        if holds():
            return
        pause.wait(every_s)
    raise AssertionError("it never came to hold")


def listen(running: Running, **query: Any) -> Client:
    """Open a live stream through the proxy. The client offers to compress, as most do."""
    url = f"{running.url}/v1/listen?{urlencode(RAW | query)}"
    return Client(connect(url, compression="deflate", open_timeout=WAIT_S, close_timeout=WAIT_S, proxy=None))


def http(running: Running) -> httpx.Client:
    """A client for plain requests through the proxy."""
    return httpx.Client(base_url=running.url.replace("ws", "http"), timeout=WAIT_S)


def closed_port() -> int:
    """A port where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class Hang:
    """A server whose event loop stands still inside a `with` block: sockets stay open, nothing comes out of them."""

    def __init__(self, server: LiveServer) -> None:
        self._server = server
        self._stopped = threading.Event()
        self._go = threading.Event()

    def __enter__(self) -> None:
        self._server.server.loop.call_soon_threadsafe(self._stand)
        assert self._stopped.wait(WAIT_S)

    def __exit__(self, *_: object) -> None:
        self._go.set()

    def _stand(self) -> None:
        self._stopped.set()
        self._go.wait(timeout=2 * WAIT_S)
