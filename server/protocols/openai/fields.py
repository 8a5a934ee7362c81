"""Form fields of OpenAI's transcriptions: which are read, ignored or refused. Pure.

Source: `TranscriptionCreateParams` of the `openai` package 3.51.0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from server.errors import BadParameter
from server.protocols.features import (
    OFF,
    SHOWN,
    Unsupported,
    check_given,
    check_single,
    named,
    refuse_unsupported,
    unsupported_feature,
)

LISTS = frozenset({
    "include", "keywords", "known_speaker_names", "known_speaker_references", "languages", "timestamp_granularities",
})  # fmt: skip
READ = frozenset({
    "finals", "grammar", "keywords", "language", "languages", "model", "response_format", "stream",
    "timestamp_granularities",
})  # fmt: skip
HARMLESS = frozenset({"chunking_strategy", "temperature"})  # ignored: the transcript means the same without them
UNSUPPORTED = frozenset({"include", "known_speaker_names", "known_speaker_references", "prompt"})
TEXTS = frozenset({"finals", "grammar", "keywords", "language", "languages", "model", "prompt"})
"""Fields that may be empty, which means not set: forms of web pages send every field."""
MAX_TEMPERATURE = 1.0


def check_fields(fields: Sequence[tuple[str, str]], *, lenient: bool) -> tuple[str, ...]:
    """Check the fields of a form; return the names of the ignored ones. Raises: BadParameter."""
    plain = [(name.removesuffix("[]") if name.removesuffix("[]") in LISTS else name, value) for name, value in fields]
    listed = [(name, value) for name, value in plain if name in READ | HARMLESS | UNSUPPORTED]
    features = [feature for name, value in plain if (feature := _unsupported(name, value)) is not None]
    refuse_unsupported(features, lenient=lenient)
    check_given((name, value) for name, value in listed if name not in TEXTS)
    check_single(listed, LISTS)
    ignored = {feature.name for feature in features}
    for name, value in plain:
        if name == "temperature":
            _check_temperature(value)
        if name not in READ | UNSUPPORTED and value.casefold() not in OFF:
            ignored.add(name)
    return named(ignored)


def _unsupported(name: str, value: str) -> Unsupported | None:
    """Return the unsupported feature that a field requests, or None."""
    if name in UNSUPPORTED:
        return Unsupported(name, always=False) if value.strip() else None
    return unsupported_feature(name, value)


def _check_temperature(value: str) -> None:
    """Raises: BadParameter."""
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 <= number <= MAX_TEMPERATURE:
        raise BadParameter(f"temperature: {value[:SHOWN]!r} is not valid; must be from 0 to {MAX_TEMPERATURE:g}")
