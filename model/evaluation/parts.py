"""Split of a set of recordings by speaker: part A for tuning, part B held out for reported figures.

Within each source, speakers are sorted by a hash of their names and assigned to A and B alternately, starting with A. A
source with one speaker is split by recording in the same way, by file name: its B has held-out recordings of a voice
that is also in A.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal

from model.recordings import Utterance

Part = Literal["A", "B"]
Selection = Literal["A", "B", "all"]


def parts_of(utterances: Sequence[Utterance]) -> list[Part]:
    """Part of each recording; depends only on the names of sources, speakers and files."""
    speakers: dict[str, set[str]] = {}
    files: dict[str, set[str]] = {}
    for utterance in utterances:
        speakers.setdefault(utterance.source, set()).add(utterance.speaker)
        files.setdefault(utterance.source, set()).add(utterance.audio.name)
    parts: dict[tuple[str, str], Part] = {}
    for source, known in speakers.items():
        names = known if len(known) > 1 else files[source]
        for number, name in enumerate(sorted(names, key=_hash)):
            parts[source, name] = "B" if number % 2 else "A"
    return [
        parts[u.source, u.speaker if len(speakers[u.source]) > 1 else u.audio.name]  # one speaker: by file
        for u in utterances
    ]


def selected(utterances: Sequence[Utterance], selection: Selection) -> list[Utterance]:
    """Recordings of one part, or all, in their order."""
    if selection == "all":
        return list(utterances)
    return [u for u, part in zip(utterances, parts_of(utterances), strict=True) if part == selection]


def _hash(name: str) -> str:
    return hashlib.sha1(name.encode(), usedforsecurity=False).hexdigest()
