"""The list of published models that `tutti model fetch` knows by name: `releases.toml`, next to this file.

Nothing here opens a connection: `model_fetch.py` downloads.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

LIST = Path(__file__).with_name("releases.toml")
NEAREST = 3
ALIKE = 0.5  # least similarity of a name that is suggested, 0 to 1


@dataclass(frozen=True, slots=True)
class Release:
    """A published model. None: not known to us."""

    name: str
    kind: str
    languages: tuple[str, ...]
    url: str
    size_mb: int | None = None
    sha256: str | None = None
    license: str | None = None


def read_releases() -> tuple[Release, ...]:
    """Read the shipped list."""
    document = tomllib.loads(LIST.read_text(encoding="utf-8"))
    address = document["address"]
    return tuple(
        Release(**{"url": address.format(name=entry["name"]), **entry, "languages": tuple(entry["languages"])})
        for entry in document["release"]
    )


def nearest_names(name: str, releases: Sequence[Release]) -> list[str]:
    """Return the names most like this one, the best first: those that contain it, then those with similar letters."""

    def likeness(other: str) -> float:
        return 1.0 if name.lower() in other.lower() else SequenceMatcher(None, name.lower(), other.lower()).ratio()

    ranked = sorted((release.name for release in releases), key=lambda other: (-likeness(other), len(other)))
    return [other for other in ranked[:NEAREST] if likeness(other) >= ALIKE]
