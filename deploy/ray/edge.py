"""HAProxy with the fleet's configuration on free ports of this machine, for trials and tests."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from deploy.ray.backends import Backend, HAProxyError, Places, RuntimeApi, State
from loadtest.errors import PeerMissing, ServerNotReady
from loadtest.failover.proxies import Ports

CONFIG = Path(__file__).parent / "haproxy.cfg"
WITHIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Edge:
    """Where clients go, and where the controller does."""

    url: str
    control: str

    def place(self, count: int, address: str) -> None:
        """Put one replica in front, without a controller. Raises: HAProxyError."""
        for command in Places(count).change({"only": Backend(address, State.READY)}):
            RuntimeApi(self.control).send(command)


@contextlib.contextmanager
def edge() -> Iterator[Edge]:
    """Start it; it is gone on leaving. Raises: PeerMissing, ServerNotReady."""
    program = shutil.which("haproxy", path="/usr/sbin:/usr/bin:/sbin:/bin")
    if program is None:
        raise PeerMissing("haproxy is not installed")
    ports = Ports.free()
    text = CONFIG.read_text(encoding="utf-8")
    text = text.replace("bind :8080", f"bind 127.0.0.1:{ports.audio}").replace(
        "127.0.0.1:9999", f"127.0.0.1:{ports.control}"
    )
    with tempfile.TemporaryDirectory(prefix="tutti-edge-") as name:
        config = Path(name) / "haproxy.cfg"
        config.write_text(text, encoding="utf-8")
        process = subprocess.Popen([program, "-f", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603
        try:
            found = Edge(f"ws://127.0.0.1:{ports.audio}", f"127.0.0.1:{ports.control}")
            _wait(process, found.control)
            yield found
        finally:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen[bytes], control: str) -> None:
    end_s = time.monotonic() + WITHIN_S
    while True:
        with contextlib.suppress(HAProxyError):
            RuntimeApi(control).send("show info")
            return
        if process.poll() is not None or time.monotonic() > end_s:
            raise ServerNotReady("haproxy does not start with the fleet's configuration")
        time.sleep(0.05)
