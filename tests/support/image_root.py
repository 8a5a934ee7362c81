"""A folder as the root of a file system, for a command of an image that is rehearsed without a container engine.

Owns the mount namespace and the change of root. What the base image would bring (the C library, a shell, Python) is
lent by this machine, read only. Knows no Dockerfile. Needs Linux, `unshare`, and to be root or allowed user namespaces.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LENT = ("/bin", "/etc", "/lib", "/lib64", "/sbin", "/usr", sys.base_prefix)
DEVICES = ("/dev", "/proc")
PASSED = ("PIP_CERT", "PIP_FIND_LINKS", "PIP_INDEX_URL", "SSL_CERT_FILE")  # how this machine reaches its packages
SYSTEM_PATH = f"{sys.base_prefix}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Chamber:
    """A root folder, and how a command sees it."""

    root: Path
    env: Mapping[str, str]
    workdir: str = "/"
    user: int | None = None  # None: root
    sealed: bool = False  # the root cannot be written, /tmp alone can

    def command(self, words: Sequence[str]) -> list[str]:
        """What runs `words` in here, as one process: a signal to it reaches them."""
        own = () if os.geteuid() == 0 else ("--map-root-user",)
        return ["unshare", "--mount", *own, "sh", "-ec", self._script(words)]

    def run(self, words: Sequence[str], timeout_s: float) -> None:
        """Run to the end. Raises: CalledProcessError, TimeoutExpired."""
        subprocess.run(self.command(words), env=self.environment(), check=True, timeout=timeout_s)  # noqa: S603

    def environment(self) -> dict[str, str]:
        """The variables of the image, and those by which packages are reached from here."""
        return {name: os.environ[name] for name in PASSED if name in os.environ} | dict(self.env)

    def _script(self, words: Sequence[str]) -> str:
        root = shlex.quote(str(self.root))
        lines = [f"mount --bind {root} {root}"]
        lines += [line for place in self._lent() for line in self._lend(place)]
        lines += [f"mount --rbind {place} {root}{place}" for place in DEVICES]
        if self.sealed:
            lines += [f"mount -o remount,bind,ro {root}", f"mount -t tmpfs -o mode=1777 tmpfs {root}/tmp"]  # noqa: S108 - its own
        change = ["chroot", str(self.root), "env", "-C", self.workdir]
        if self.user is not None and os.geteuid() == 0:  # in a user namespace of one user there is nobody else
            change += ["setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups", "--no-new-privs"]
        return "\n".join([*lines, f"exec {shlex.join([*change, *words])}"])

    def _lend(self, place: str) -> list[str]:
        target = shlex.quote(f"{self.root}{place}")
        return [f"mount --bind {place} {target}", f"mount -o remount,bind,ro {target}"]

    def _lent(self) -> list[str]:
        links = os.environ.get("PIP_FIND_LINKS", "").split() if not self.sealed else []
        return [place for place in dict.fromkeys((*LENT, *links)) if Path(place).is_dir()]

    def furnish(self) -> None:
        """Make the empty folders that what is lent is mounted on."""
        for place in (*self._lent(), *DEVICES, "/tmp", self.workdir):  # noqa: S108 - of the image
            (self.root / place.lstrip("/")).mkdir(parents=True, exist_ok=True)
        (self.root / "tmp").chmod(0o1777)
