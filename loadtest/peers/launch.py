"""Server process of a comparison: start, CPU time and batch sizes, and stop with all its child processes."""

from __future__ import annotations

import contextlib
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from loadtest import processes, served


@dataclass(frozen=True, slots=True)
class Running:
    """A ready server."""

    port: int
    pid: int

    @property
    def url(self) -> str:
        """URL for streams."""
        return f"ws://127.0.0.1:{self.port}"

    def cpu_by_name(self) -> Counter[str]:
        """Return the CPU seconds of its processes until now."""
        return processes.cpu_by_name(processes.tree(self.pid))

    def batches(self) -> dict[int, float]:
        """Return the number of batches by size until now; empty for a server without `/batches`."""
        try:
            return msgspec.json.decode(served.get(self.port, "/batches"), type=dict[int, float], strict=False)
        except (OSError, msgspec.DecodeError):
            return {}


@contextlib.contextmanager
def launched(command: Sequence[str]) -> Iterator[Running]:
    """Start a server and yield it when it is ready; it is stopped on exit.

    Raises:
        ServerNotReady: it exited, or took too long; with the end of its output.
    """
    port = served.free_port()
    with tempfile.TemporaryFile() as output:
        process = served.start([*command, "--port", str(port)], output)
        try:
            served.wait_until_ready(process, lambda: served.is_ready(port), output)
            yield Running(port, process.pid)
        finally:
            processes.stop(process)
