"""pip's settings of this machine for the builds of images: package indexes, certificates, local folders."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


def pip_options(folder: Path) -> list[str]:
    """Return options of `podman build` that mount this machine's settings of pip, and the files that they name.

    Writes one file to `folder`. Without settings, as on most machines, there are no options. Raises:
    CalledProcessError.
    """
    values = settings()
    if not values:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "pip.conf"
    lines = ["[global]", *(f"{name} = {' '.join(value.split())}" for name, value in values.items()), ""]
    file.write_text("\n".join(lines))
    named = {place for value in values.values() for word in value.split() if (place := local_place(word))}
    mounts = [(file, Path("/etc/pip.conf")), *((place, place) for place in sorted(named))]
    return [f"--volume={source}:{target}:ro" for source, target in mounts]


def settings() -> dict[str, str]:
    """Return pip's settings of this machine by name. Raises: CalledProcessError."""
    words = [sys.executable, "-m", "pip", "config", "list"]
    return settings_in(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def torch_index() -> dict[str, str]:
    """Return the option of `podman build` that names a local folder with torch's wheel, if there is one.

    It stands for PyTorch's index, which not every machine reaches. Raises: CalledProcessError.
    """
    folders = [Path(word) for word in settings().get("find-links", "").split()]
    found = [folder for folder in folders if any(folder.glob("torch-*+cpu-*.whl"))]
    return {"--build-arg=TORCH_INDEX": str(found[0])} if found else {}


def settings_in(listed: str) -> dict[str, str]:
    """Return pip's settings by name from the output of `pip config list`; variables take precedence."""
    found = re.findall(r"(?m)^(global|:env:)\.([\w-]+)='(.*)'$", listed)
    return {name: value for kind in ("global", ":env:") for scope, name, value in found if scope == kind}


def local_place(word: str) -> Path | None:
    """Return the file or folder that a word of the settings names, None for anything else.

    Of an index in a folder it is the one above it, where the packages may be.
    """
    if word.startswith("file:///"):
        place = Path(word.removeprefix("file://")).parent
    elif word.startswith("/"):
        place = Path(word)
    else:
        return None
    return place if place.exists() else None
