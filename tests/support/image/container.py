"""One container of an image, limited as an operator would limit it, and what its limits and processes say."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import httpx

from loadtest.served import free_port
from tests.support.deployment.edge import wait_until
from tests.support.image.engine import Engine, EngineError, limits

HEALTHY_WITHIN_S = 60.0
WITHOUT_DOCKER = ("--health-interval=disable", "--read-only-tmpfs=false")
"""podman's timer of health checks needs systemd; its --read-only leaves more folders writable than docker's."""
CGROUPS = Path("/sys/fs/cgroup")
PEAKS = ("memory.peak", "memory.max_usage_in_bytes")  # of cgroup v2 and v1


class Container:
    """Runs inside a `with` block, with the server's port on 127.0.0.1."""

    def __init__(
        self, engine: Engine, image: str, *options: str, files: int | None = None, words: Sequence[str] = ()
    ) -> None:
        """`options` of `podman run`; `files`: limit of open files; `words` replace the image's command."""
        self._engine = engine
        self.port = free_port()
        self._words = ["run", "--detach", f"--publish=127.0.0.1:{self.port}:8080", *WITHOUT_DOCKER, *limits(files)]
        self._words += [*options, image, *words]

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
        return self._engine.call("logs", self.name, errors=True)

    def events(self) -> list[dict[str, Any]]:
        """Return the lines of the log that are JSON."""
        return [json.loads(line) for line in self.log().splitlines() if line.startswith("{")]

    def stop_words(self) -> list[str]:
        """Return a command line that sends the image's stop signal, and SIGKILL after the time of `--stop-timeout`."""
        return self._engine.command("stop", self.name)

    def memory_peak(self) -> int:
        """Return the most memory that the container's control group has had, bytes, with its tmpfs."""
        groups = Path(f"/proc/{self.state['Pid']}/cgroup").read_text()
        found = dict(re.findall(r"(?m)^\d+:(memory|):/(.*)$", groups))
        places = [CGROUPS / kind / group / name for kind, group in found.items() for name in PEAKS]
        return next(int(place.read_text()) for place in places if place.exists())

    def processes(self) -> list[tuple[int, str, str]]:
        """Return number, name and state of every process in the container, as it sees them itself."""
        root = Path("/proc", str(self.state["Pid"]), "root", "proc")
        found = []
        for place in sorted(int(each.name) for each in root.iterdir() if each.name.isdigit()):
            with contextlib.suppress(OSError):
                text = (root / str(place) / "stat").read_text()
                name, _, rest = text.partition("(")[2].rpartition(")")
                found.append((place, name, rest.split()[0]))
        return found
