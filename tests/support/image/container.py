"""One container of an image, limited as an operator would limit it, and what its limits and processes say."""

from __future__ import annotations

import contextlib
import json
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import httpx

from loadtest.served import free_port
from tests.support.deployment.edge import wait_until
from tests.support.image.engine import Engine, EngineError

HEALTHY_WITHIN_S = 60.0
HARDENED = ("--read-only", "--read-only-tmpfs=false", "--tmpfs=/tmp", "--cap-drop=all")
HARDENED += ("--security-opt=no-new-privileges",)
"""The documented run: no writable folder but /tmp, which docker's --read-only does not add to."""
CGROUPS = Path("/sys/fs/cgroup")
PEAKS = ("memory.peak", "memory.max_usage_in_bytes")  # of cgroup v2 and v1


class Container:
    """Runs inside a `with` block, with the server's port on 127.0.0.1."""

    def __init__(self, engine: Engine, image: str, *options: str, words: Sequence[str] = ()) -> None:
        """`options` of `podman run`; `words` replace the image's command."""
        self._engine = engine
        self.port = free_port()
        self._words = ["run", "--detach", f"--publish=127.0.0.1:{self.port}:8080", "--health-interval=disable"]
        self._words += [*HARDENED, *options, image, *words]

    def __enter__(self) -> Self:
        self.name = self._engine.call(*self._words)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(EngineError):
            self._engine.call("rm", "--force", "--time=0", self.name)

    @property
    def state(self) -> dict[str, Any]:
        """What podman says of the container: `Pid` of the first process, `ExitCode`, `OOMKilled` and others."""
        return dict(self._engine.inspect(self.name)["State"])

    def status(self, path: str) -> int:
        """Return the status of a page of the server, 0 for no answer."""
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}{path}", timeout=5.0, trust_env=False).status_code
        except httpx.TransportError:
            return 0

    def wait_ready(self) -> None:
        """Wait until `/readyz` says 200. Raises: AssertionError with the log."""
        try:
            wait_until(lambda: self.status("/readyz") == httpx.codes.OK or not self.runs, 0.1, HEALTHY_WITHIN_S)
        finally:
            assert self.status("/readyz") == httpx.codes.OK, self.log()

    @property
    def runs(self) -> bool:
        """Whether its first process is alive."""
        return self.state["Status"] == "running"

    def healthy(self) -> bool:
        """Run the image's HEALTHCHECK once."""
        try:
            self._engine.call("healthcheck", "run", self.name)
        except EngineError:
            return False
        return True

    def execute(self, *words: str) -> str:
        """Run a command in the container as its user, and return the output. Raises: EngineError."""
        return self._engine.call("exec", self.name, *words)

    def log(self) -> str:
        """Return what the server has written so far, to both outputs."""
        return self._engine.call("logs", self.name)

    def events(self) -> list[dict[str, Any]]:
        """Return the lines of the log that are JSON."""
        return [json.loads(line) for line in self.log().splitlines() if line.startswith("{")]

    def stop(self, within_s: int) -> int:
        """Send the image's stop signal, SIGKILL after `within_s`, and return the exit status."""
        self._engine.call("stop", f"--time={within_s}", self.name, within_s=within_s + 30.0)
        return int(self.state["ExitCode"])

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the first process."""
        self._engine.call("kill", f"--signal={number.name}", self.name)

    def memory_peak(self) -> int:
        """Return the most memory that the container's control group has had, bytes, with its tmpfs."""
        groups = Path(f"/proc/{self.state['Pid']}/cgroup").read_text()
        found = re.search(r"(?m)^\d+:(?:memory|):(/.*)$", groups)
        assert found, groups
        places = [CGROUPS / kind / found[1].lstrip("/") / name for kind in ("memory", "") for name in PEAKS]
        return next(int(place.read_text()) for place in places if place.exists())

    def processes(self) -> list[tuple[int, str, str]]:
        """Return number, name and state of every process in the container, as it sees them itself."""
        root = Path(f"/proc/{self.state['Pid']}/root/proc")
        found = []
        for place in sorted(int(each.name) for each in root.iterdir() if each.name.isdigit()):
            with contextlib.suppress(OSError):
                text = (root / str(place) / "stat").read_text()
                name, _, rest = text.partition("(")[2].rpartition(")")
                found.append((place, name, rest.split()[0]))
        return found
