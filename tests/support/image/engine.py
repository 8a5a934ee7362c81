"""podman with images and containers of its own in one folder, apart from all others of the machine."""

from __future__ import annotations

import json
import resource
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CALL_WITHIN_S = 60.0
SHOWN_LINES = 40
PROCESSES = 4_096  # of one user


class EngineError(Exception):
    """A command of podman failed; the text is the end of its output."""


@dataclass(frozen=True, slots=True)
class Engine:
    """Runs as root; keeps images, containers and their state in `folder`."""

    folder: Path

    def command(self, *words: str) -> list[str]:
        """Return a command line of podman."""
        own = {"--root": "storage", "--runroot": "run", "--tmpdir": "tmp"}
        places = [f"{option}={self.folder / name}" for option, name in own.items()]
        return ["podman", *places, "--runtime=runc", "--cgroup-manager=cgroupfs", "--events-backend=file", *words]

    def call(self, *words: str, within_s: float = CALL_WITHIN_S, errors: bool = False) -> str:
        """Run a command and return its output, with its `errors` if wanted. Raises: EngineError, TimeoutExpired."""
        self.folder.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(self.command(*words), capture_output=True, text=True, timeout=within_s, check=False)
        both = (done.stdout + done.stderr).strip()
        if done.returncode:
            end = "\n".join(both.splitlines()[-SHOWN_LINES:])
            raise EngineError(f"podman {' '.join(words[:4])} …:\n{end}")
        return both if errors else done.stdout.strip()

    def has_image(self, name: str) -> bool:
        """Return whether an image of this name is kept."""
        return bool(self.call("images", "--quiet", "--filter", f"reference={name}"))

    def inspect(self, name: str) -> dict[str, Any]:
        """Return what podman knows of an image or a container. Raises: EngineError if there is no such one."""
        [found] = json.loads(self.call("inspect", name))
        return dict(found)

    def run_once(self, image: str, words: Sequence[str], *options: str) -> str:
        """Run a command instead of the image's entry point and return its output. Raises: EngineError."""
        entry = ("--entrypoint", json.dumps([words[0]]))
        return self.call("run", "--rm", "--network=none", *limits(), *entry, *options, image, *words[1:])


def limits(files: int | None = None) -> list[str]:
    """Return options that limit a container's open files, by default to this process's limit, and its processes.

    podman's own limits are higher than a root without CAP_SYS_RESOURCE may set.
    """
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1] if files is None else files
    return [f"--ulimit=nofile={most}:{most}", f"--ulimit=nproc={PROCESSES}:{PROCESSES}"]
