"""Training transcripts: converted to the symbols of the vocabulary, or refused with file and line."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from model.attention_config import OwnConfig
from model.errors import ManifestError
from model.recordings import Utterance
from model.text.normalization import comparable

_TONES = frozenset("012345")  # of pinyin syllables; the pronunciations need them
_SHOWN = 60


def spelled(utterances: Sequence[Utterance], config: OwnConfig) -> list[Utterance]:
    """Recordings with their texts in the vocabulary's symbols; capitals and marks are normalized.

    Raises: ManifestError for a text with other letters, or without any.
    """
    known = frozenset(config.vocabulary) | {" "} | (_TONES if config.language == "zh" else frozenset())
    return [_spelled(utterance, known, config.name) for utterance in utterances]


def changed(before: Sequence[Utterance], after: Sequence[Utterance]) -> int:
    """Number of texts that were normalized."""
    return sum(old.text.split() != new.text.split() for old, new in zip(before, after, strict=True))


def _spelled(utterance: Utterance, known: frozenset[str], name: str) -> Utterance:
    if utterance.text.strip() and known.issuperset(utterance.text):
        return utterance
    text = comparable(utterance.text)
    begin = f"{utterance.where}: text: {utterance.text[:_SHOWN]!r}"
    if not text:
        raise ManifestError(f"{begin} has no word")
    if others := sorted(set(text) - known):
        raise ManifestError(
            f"{begin} has {''.join(others[:8])!r}, which the vocabulary of {name} lacks; "
            "write numbers as words, and use only letters of the vocabulary"
        )
    return dataclasses.replace(utterance, text=text)
