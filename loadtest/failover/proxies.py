"""The proxies of deploy/ in front of replicas on this machine: the shipped files with other addresses, really started.

Owns the form of an address in each file, and the proxy's process. Knows no stream, and of a replica its port.
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
from loadtest.served import free_port

DEPLOY = Path(__file__).parents[2] / "deploy"
SHIPPED_REPLICAS = 3
LISTENS_WITHIN_S = 30.0
STOPS_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Ports:
    """Loopback ports of a proxy: for clients, for clients with TLS, for its statistics, and for control."""

    audio: int
    tls: int
    figures: int
    control: int

    @classmethod
    def free(cls) -> Ports:
        """Four that are free now."""
        return cls(free_port(), free_port(), free_port(), free_port())


@dataclass(frozen=True, slots=True)
class Tls:
    """A certificate: as one PEM file with its key, and as two files `tls.crt` and `tls.key` in one folder."""

    both: Path
    folder: Path


@dataclass(frozen=True, slots=True)
class Running:
    """A proxy that listens, and where the file that it runs with lies."""

    ports: Ports
    config: Path
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        """The address for clients."""
        return f"ws://127.0.0.1:{self.ports.audio}"


@dataclass(frozen=True, slots=True)
class Proxy:
    """One of the shipped proxies: its file, what is to be replaced in it, and its command line."""

    program: str
    config: Path
    replica: Callable[[str, int], str]  # host, port: as the file has it
    addresses: Callable[[Ports, Path], Mapping[str, str]]
    command: Callable[[Path], list[str]]

    def found(self) -> str | None:
        """The program, on the path or beside this Python; None if it is not installed."""
        beside = Path(sys.executable).parent / self.program
        return shutil.which(self.program) or (str(beside) if beside.exists() else None)

    def render(self, ports: Ports, replicas: Sequence[int], folder: Path) -> str:
        """The shipped file for these ports. Raises: ValueError: an address is not in it; PeerMissing: no checkout."""
        if not self.config.is_file():
            raise PeerMissing(f"{self.config} is not there: the proxies' files are in a checkout, not in the wheel")
        text = self.config.read_text(encoding="utf-8")
        for number in range(SHIPPED_REPLICAS):
            shipped = self.replica(f"replica-{number + 1}", 8080)
            if text.count(shipped) != 1:
                raise ValueError(f"{self.config}: {shipped!r} is not in it once")
            if number < len(replicas):
                text = text.replace(shipped, self.replica("127.0.0.1", replicas[number]))
            else:
                text = "".join(line for line in text.splitlines(keepends=True) if shipped not in line)
        for old, new in self.addresses(ports, folder).items():
            if old not in text:
                raise ValueError(f"{self.config}: no {old!r} in it")
            text = text.replace(old, new)
        return text

    @contextlib.contextmanager
    def running(
        self, replicas: Sequence[int], *, tls: Tls | None = None, change: Callable[[str], str] | None = None
    ) -> Iterator[Running]:
        """Start it before these ports; it is stopped on leaving. `change` edits the file that it runs with.

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
            config, env = self._lay_out(ports, replicas, folder, tls)
            if change is not None:
                config.write_text(change(config.read_text(encoding="utf-8")), encoding="utf-8")
            process = served.start([program, *self.command(config)], output, env)
            try:
                served.wait_until_ready(
                    process, lambda: _listens(ports.audio), output, name="the proxy", within_s=LISTENS_WITHIN_S
                )
                yield Running(ports, config, process)
            finally:
                served.stop(process, STOPS_WITHIN_S)

    def _lay_out(
        self, ports: Ports, replicas: Sequence[int], folder: Path, tls: Tls | None
    ) -> tuple[Path, dict[str, str]]:
        """Write its files, with a certificate where there is one; return the first, and its variables."""
        text, env = self.render(ports, replicas, folder), {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        if tls is not None:
            text = text.replace("#tls: ", "")
            env["TUTTI_CERT"] = str(tls.both)
            place = folder / "tls"
            place.mkdir()
            for file in (tls.folder / "tls.crt", tls.folder / "tls.key"):
                shutil.copy(file, place / file.name)
            extra = self.config.with_name("tls.conf")
            if extra.exists():
                lines = extra.read_text(encoding="utf-8").replace("/etc/nginx/tutti", str(place))
                lines = lines.replace("listen 8443", f"listen 127.0.0.1:{ports.tls}").replace("8443", str(ports.tls))
                (place / extra.name).write_text(lines, encoding="utf-8")
        config = folder / f"proxy{self.config.suffix}"
        config.write_text(text, encoding="utf-8")
        return config, env


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
        return True
    return False


PROXIES: Mapping[str, Proxy] = {
    "haproxy": Proxy(
        program="haproxy",
        config=DEPLOY / "haproxy" / "haproxy.cfg",
        replica=lambda host, port: f"{host}:{port}",
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
        replica=lambda host, port: f"{host}:{port}",
        addresses=lambda ports, folder: {
            "listen 8080": f"listen 127.0.0.1:{ports.audio}",
            "listen 127.0.0.1:8404": f"listen 127.0.0.1:{ports.figures}",
            "/tmp/nginx": str(folder / "nginx"),  # noqa: S108 - of the shipped file
            "/etc/nginx/tutti/": f"{folder}/tls/",
        },
        # In the foreground: its master is the process that is stopped.
        command=lambda config: ["-c", str(config), "-p", str(config.parent), "-g", "daemon off;"],
    ),
    "envoy": Proxy(
        program="envoy",
        config=DEPLOY / "envoy" / "envoy.yaml",
        replica=lambda host, port: f"address: {host}, port_value: {port}",
        addresses=lambda ports, folder: {
            "address: 0.0.0.0, port_value: 8080": f"address: 127.0.0.1, port_value: {ports.audio}",
            "port_value: 9901": f"port_value: {ports.control}",
            "/etc/envoy/": f"{folder}/tls/",
        },
        command=lambda config: ["-c", str(config), "--concurrency", "1", "--disable-hot-restart", "-l", "warn"],
    ),
}
