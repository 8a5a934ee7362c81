"""Two parts of a set of recordings, split by speaker: A to tune on, B for figures of what was never tuned on.

Within each source the speakers are put in the order of a hash of their names, and go to A and B in turn: as many to
the one as to the other, or one more to A. A source with one speaker is split by recording in the same way, by file
name: its B has recordings that were not tuned on, by a voice that was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal

from model.recordings import Utterance

Part = Literal["A", "B"]
Selection = Literal["A", "B", "all"]


def parts_of(utterances: Sequence[Utterance]) -> list[Part]:
    """The part of each recording; it depends on the names of sources, speakers and files alone."""
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
        parts[u.source, u.speaker if len(speakers[u.source]) > 1 else u.audio.name]  # of one speaker, the file
        for u in utterances
    ]


def selected(utterances: Sequence[Utterance], selection: Selection) -> list[Utterance]:
    """The recordings of one part, or all, in their order."""
    if selection == "all":
        return list(utterances)
    return [u for u, part in zip(utterances, parts_of(utterances), strict=True) if part == selection]


def _hash(name: str) -> str:
    return hashlib.sha1(name.encode(), usedforsecurity=False).hexdigest()
