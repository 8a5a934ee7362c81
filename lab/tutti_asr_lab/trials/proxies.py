"""The proxies of deploy/, started in front of local replicas from the shipped files with addresses replaced.

Owns the address formats of each file and the proxy's process.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtest import served
from loadtest.errors import PeerMissing
from loadtest.served import ROOT, free_port

DEPLOY = ROOT / "deploy"
SHIPPED_REPLICAS = 3
LISTENS_WITHIN_S = 30.0
STOPS_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Ports:
    """Loopback ports of a proxy: for clients, clients with TLS, statistics, and control."""

    audio: int
    tls: int
    figures: int
    control: int

    @classmethod
    def free(cls) -> Ports:
        """Return four free ports."""
        return cls(free_port(), free_port(), free_port(), free_port())


@dataclass(frozen=True, slots=True)
class Running:
    """A running proxy and the path of its configuration file."""

    ports: Ports
    config: Path
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        """URL for clients."""
        return f"ws://127.0.0.1:{self.ports.audio}"


@dataclass(frozen=True, slots=True)
class Proxy:
    """A shipped proxy: its file, the replacements in it, and its command line."""

    program: str
    config: Path
    in_front_of: Callable[[str, Sequence[int]], str]  # the file with these replicas; raises ValueError
    addresses: Callable[[Ports, Path], Mapping[str, str]]
    command: Callable[[Path], list[str]]

    def found(self) -> str | None:
        """Return the program, from PATH or from the folder of this Python; None if it is not installed."""
        local = Path(sys.executable).parent / self.program
        return shutil.which(self.program) or (str(local) if local.exists() else None)

    def render(self, ports: Ports, replicas: Sequence[int], folder: Path) -> str:
        """Return the shipped file with these ports. Raises: ValueError: address not found; PeerMissing: no checkout."""
        if not self.config.is_file():
            raise PeerMissing(f"{self.config} is missing: the proxies' files are only in a checkout, not in the wheel")
        text = self.config.read_text(encoding="utf-8")
        try:
            text = self.in_front_of(text, replicas)
        except ValueError as error:
            raise ValueError(f"{self.config}: {error}") from None
        for old, new in self.addresses(ports, folder).items():
            if old not in text:
                raise ValueError(f"{self.config}: {old!r} is missing")
            text = text.replace(old, new)
        return text

    @contextlib.contextmanager
    def running(self, replicas: Sequence[int]) -> Iterator[Running]:
        """Start it in front of these ports; it is stopped on exit.

        Raises:
            PeerMissing: it is not installed.
            ServerNotReady: it ended, or did not listen in time; with the end of what it printed.
        """
        program = self.found()
        if program is None:
            raise PeerMissing(f"{self.program} is not installed")
        ports = Ports.free()
        with tempfile.TemporaryDirectory(prefix="tutti-proxy-") as name, tempfile.TemporaryFile() as output:
            folder = Path(name)
            config, env = self.lay_out(ports, replicas, folder)
            process = served.start([program, *self.command(config)], output, env)
            try:
                served.wait_until_ready(
                    process, lambda: _listens(ports.audio), output, name="the proxy", within_s=LISTENS_WITHIN_S
                )
                yield Running(ports, config, process)
            finally:
                served.stop(process, STOPS_WITHIN_S)

    def lay_out(self, ports: Ports, replicas: Sequence[int], folder: Path) -> tuple[Path, dict[str, str]]:
        """Write its configuration into `folder`; returns the file and the environment variables of the process."""
        config = folder / f"proxy{self.config.suffix}"
        config.write_text(self.render(ports, replicas, folder), encoding="utf-8")
        return config, {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
        return True
    return False


def _listed(address: Callable[[str, int], str]) -> Callable[[str, Sequence[int]], str]:
    """Return the rendering of a file that lists its replicas; lines of those that are not needed are left out."""

    def render(text: str, replicas: Sequence[int]) -> str:
        for number in range(SHIPPED_REPLICAS):
            shipped = address(f"replica-{number + 1}", 8080)
            if text.count(shipped) != 1:
                raise ValueError(f"{shipped!r} must occur exactly once")
            if number < len(replicas):
                text = text.replace(shipped, address("127.0.0.1", replicas[number]))
            else:
                text = "".join(line for line in text.splitlines(keepends=True) if shipped not in line)
        return text

    return render


def _templated(text: str, replicas: Sequence[int]) -> str:
    """Render a file whose replicas are found by DNS: one line for each port instead of the template."""
    template = "    server-template replica- 16 replica:8080\n"
    if text.count(template) != 1:
        raise ValueError(f"{template.strip()!r} must occur exactly once")
    servers = (f"    server replica-{number} 127.0.0.1:{port}\n" for number, port in enumerate(replicas, 1))
    return text.replace(template, "".join(servers))


PROXIES: Mapping[str, Proxy] = {
    "haproxy": Proxy(
        program="haproxy",
        config=DEPLOY / "haproxy" / "haproxy.cfg",
        in_front_of=_templated,
        addresses=lambda ports, _: {
            "bind :8080": f"bind 127.0.0.1:{ports.audio}",
            "bind :8443": f"bind 127.0.0.1:{ports.tls}",
            "bind :8404": f"bind 127.0.0.1:{ports.figures}",
            "ipv4@127.0.0.1:9999": f"ipv4@127.0.0.1:{ports.control}",
        },
        command=lambda config: ["-db", "-f", str(config)],
    ),
    "nginx": Proxy(
        program="nginx",
        config=DEPLOY / "nginx" / "nginx.conf",
        in_front_of=_listed(lambda host, port: f"{host}:{port}"),
        addresses=lambda ports, folder: {
            "listen 8080": f"listen 127.0.0.1:{ports.audio}",
            "listen 127.0.0.1:8404": f"listen 127.0.0.1:{ports.figures}",
            "/tmp/nginx": str(folder / "nginx"),  # noqa: S108 - in the shipped file
            "/etc/nginx/tutti/": f"{folder}/tls/",
        },
        # in the foreground, so that the started process is the master
        command=lambda config: ["-c", str(config), "-p", str(config.parent), "-g", "daemon off;"],
    ),
    "envoy": Proxy(
        program="envoy",
        config=DEPLOY / "envoy" / "envoy.yaml",
        in_front_of=_listed(lambda host, port: f"address: {host}, port_value: {port}"),
        addresses=lambda ports, folder: {
            "address: 0.0.0.0, port_value: 8080": f"address: 127.0.0.1, port_value: {ports.audio}",
            "port_value: 9901": f"port_value: {ports.control}",
            "/etc/envoy/": f"{folder}/tls/",
        },
        command=lambda config: ["-c", str(config), "--concurrency", "1", "--disable-hot-restart", "-l", "warn"],
    ),
}
