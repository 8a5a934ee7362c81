"""Run a command in a mount namespace with a folder as its root, to run an image's commands without a container engine.

What the base image would bring (the C library, a shell, Python) is mounted from this machine, read only. Knows no
Dockerfile. Needs Linux, `unshare`, and to be root or allowed user namespaces.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HOST_FOLDERS = ("/bin", "/etc", "/lib", "/lib64", "/sbin", "/usr", sys.base_prefix)
DEVICES = ("/dev", "/proc")
PASSED_VARIABLES = (
    "PIP_CERT",
    "PIP_FIND_LINKS",
    "PIP_INDEX_URL",
    "SSL_CERT_FILE",
)
SYSTEM_PATH = f"{sys.base_prefix}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class ImageRoot:
    """A root folder with environment, working directory and user of the commands run in it."""

    root: Path
    env: Mapping[str, str]
    workdir: str = "/"
    user: int | None = None  # None: root
    read_only: bool = False  # except /tmp

    def command(self, words: Sequence[str]) -> list[str]:
        """Return a command line that runs `words` in the root as one process, so that signals reach it."""
        own = () if os.geteuid() == 0 else ("--map-root-user",)
        return ["unshare", "--mount", *own, "sh", "-ec", self._script(words)]

    def run(self, words: Sequence[str], timeout_s: float) -> None:
        """Run and wait for the end. Raises: CalledProcessError, TimeoutExpired."""
        subprocess.run(self.command(words), env=self.environment(), check=True, timeout=timeout_s)

    def environment(self) -> dict[str, str]:
        """Return the image's variables, and those that pip needs on this machine."""
        return {name: os.environ[name] for name in PASSED_VARIABLES if name in os.environ} | dict(self.env)

    def _script(self, words: Sequence[str]) -> str:
        root = shlex.quote(str(self.root))
        lines = [f"mount --bind {root} {root}"]
        lines += [line for place in self._host_folders() for line in self._mount(place)]
        lines += [f"mount --rbind {place} {root}{place}" for place in DEVICES]
        if self.read_only:
            lines += [f"mount -o remount,bind,ro {root}", f"mount -t tmpfs -o mode=1777 tmpfs {root}/tmp"]
        change = ["chroot", str(self.root), "env", "-C", self.workdir]
        if self.user is not None and os.geteuid() == 0:  # a user namespace has a single user
            change += ["setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups", "--no-new-privs"]
        return "\n".join([*lines, f"exec {shlex.join([*change, *words])}"])

    def _mount(self, place: str) -> list[str]:
        target = shlex.quote(f"{self.root}{place}")
        return [f"mount --bind {place} {target}", f"mount -o remount,bind,ro {target}"]

    def _host_folders(self) -> list[str]:
        links = os.environ.get("PIP_FIND_LINKS", "").split() if not self.read_only else []
        return [place for place in dict.fromkeys((*HOST_FOLDERS, *links)) if Path(place).is_dir()]

    def make_mount_points(self) -> None:
        """Create the mount points for folders of the host."""
        for place in (*self._host_folders(), *DEVICES, "/tmp", self.workdir):
            (self.root / place.lstrip("/")).mkdir(parents=True, exist_ok=True)
        (self.root / "tmp").chmod(0o1777)
