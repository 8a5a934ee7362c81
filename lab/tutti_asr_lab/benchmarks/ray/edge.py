"""HAProxy with the configuration of deploy/ray on free local ports, for trials and tests."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import deploy.ray
from deploy.ray.backends import Backend, HAProxyError, Places, RuntimeApi, State
from loadtest import served
from loadtest.errors import PeerMissing
from tutti_asr_lab.trials.proxies import Ports

CONFIG = Path(deploy.ray.__file__).parent / "haproxy.cfg"
READY_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Edge:
    """URL for clients, and address of the runtime API for the controller."""

    url: str
    control: str

    def place(self, count: int, address: str) -> None:
        """Add one replica without a controller. Raises: HAProxyError."""
        for command in Places(count).change({"only": Backend(address, State.READY)}):
            RuntimeApi(self.control).send(command)


@contextlib.contextmanager
def edge() -> Iterator[Edge]:
    """Start HAProxy; it is stopped on exit. Raises: PeerMissing, ServerNotReady."""
    program = shutil.which("haproxy", path="/usr/sbin:/usr/bin:/sbin:/bin")
    if program is None:
        raise PeerMissing("haproxy is not installed")
    ports = Ports.free()
    text = CONFIG.read_text(encoding="utf-8")
    text = text.replace("bind :8080", f"bind 127.0.0.1:{ports.audio}").replace(
        "127.0.0.1:9999", f"127.0.0.1:{ports.control}"
    )
    with tempfile.TemporaryDirectory(prefix="tutti-edge-") as name, tempfile.TemporaryFile() as output:
        config = Path(name) / "haproxy.cfg"
        config.write_text(text, encoding="utf-8")
        process = served.start([program, "-f", str(config)], output)
        try:
            found = Edge(f"ws://127.0.0.1:{ports.audio}", f"127.0.0.1:{ports.control}")
            served.wait_until_ready(
                process, lambda: _answers(found.control), output, name="haproxy", within_s=READY_WITHIN_S
            )
            yield found
        finally:
            served.stop(process, within_s=0.0)


def _answers(control: str) -> bool:
    with contextlib.suppress(HAProxyError):
        RuntimeApi(control).send("show info")
        return True
    return False
