"""A replica as a Ray actor: runs the unchanged server as a process with its own port, on the node chosen by Ray.

The actor starts the server, reads its metrics and drains it; the server is killed when the actor dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PR_SET_PDEATHSIG = 1
ANSWER_WITHIN_S = 1.0
GAUGES = ("tutti_ready", "tutti_sessions_max", "tutti_estimated_session_capacity")
ACTIVE, RESTING = "tutti_sessions_active", "tutti_resting_channels"
ALL_INTERFACES = ("0.0.0.0", "::")  # noqa: S104 - not addresses of a host


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of a replica from its metrics; zero and False without an answer."""

    address: str
    ended: bool
    ready: bool = False
    active: int = 0
    limit: int = 0


class Replica:
    """Runs `tutti serve`. Methods are called only by the controller, one at a time."""

    def __init__(self, host: str, options: Sequence[str], environment: Mapping[str, str], node: str = "") -> None:
        """Start the server on a free port of `host`, without waiting until it is ready.

        `node` is the address of the machine, by which a server on all interfaces can be reached.
        """
        host = host.strip("[]")
        with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as free:
            port = free.getsockname()[1]
        self._address = address(node if node and host in ALL_INTERFACES else host, port)
        alone = ("--front-ends", "0")  # the fleet grows by replicas, each of one process
        command = [sys.executable, "-m", "server.cli", "serve", "--host", host, "--port", str(port), *alone, *options]
        # One machine has several replicas, and `figures` reads the main port: an empty variable sets no other one.
        own = {**environment, "TUTTI_METRICS_PORT": ""}
        self._process = subprocess.Popen(command, env=own, preexec_fn=_die_with_parent)  # noqa: S603, PLW1509

    def figures(self) -> Figures:
        """Read the server's metrics."""
        if self._process.poll() is not None:
            return Figures(self._address, ended=True)
        try:
            with urllib.request.urlopen(f"http://{self._address}/metrics", timeout=ANSWER_WITHIN_S) as answer:
                values = read(answer.read().decode())
        except (OSError, urllib.error.URLError):
            return Figures(self._address, ended=False)
        limits = [int(values[name]) for name in GAUGES[1:] if values.get(name)]
        return Figures(
            self._address,
            ended=False,
            ready=values.get("tutti_ready") == 1,
            active=int(values.get(ACTIVE, 0) - values.get(RESTING, 0)),
            limit=min(limits, default=0),
        )

    def drain(self) -> None:
        """Start the server's drain; `figures` reports its end. A second call ends it at once."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)


def address(host: str, port: int) -> str:
    """Return host and port as one text, with brackets around IPv6: `[::1]:8080`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def read(exposition: str) -> dict[str, float]:
    """Return the gauges of interest, summed over labels."""
    values: dict[str, float] = {}
    for line in exposition.splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        if name in (*GAUGES, ACTIVE, RESTING):
            values[name] = values.get(name, 0.0) + float(line.rpartition(" ")[2])
    return values


def _die_with_parent() -> None:
    """Make the kernel kill the server when its actor dies, so that none runs unsupervised."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
