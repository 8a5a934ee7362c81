"""Fields of OpenAI's form for transcriptions: which of them this server reads, does without, or refuses. Pure.

Source: `TranscriptionCreateParams` of the `openai` package 3.51.0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from server.errors import BadParameter
from server.protocols.features import (
    OFF,
    SHOWN,
    Lacking,
    check_given,
    check_single,
    lacking,
    named,
    refuse_lacking,
)

LISTS = frozenset({
    "include", "keywords", "known_speaker_names", "known_speaker_references", "languages", "timestamp_granularities",
})  # fmt: skip
READ = frozenset({
    "finals", "grammar", "keywords", "language", "languages", "model", "response_format", "stream",
    "timestamp_granularities",
})  # fmt: skip
HARMLESS = frozenset({"chunking_strategy", "temperature"})  # the transcript means the same without them
LACKED = frozenset({"include", "known_speaker_names", "known_speaker_references", "prompt"})
TEXTS = frozenset({"finals", "grammar", "keywords", "language", "languages", "model", "prompt"})
"""Fields that may be empty, which asks for nothing: forms of web pages send every field."""
MAX_TEMPERATURE = 1.0


def check_fields(fields: Sequence[tuple[str, str]], *, lenient: bool) -> tuple[str, ...]:
    """Check the fields of a form; return the names of those that are ignored. Raises: BadParameter."""
    plain = [(name.removesuffix("[]") if name.removesuffix("[]") in LISTS else name, value) for name, value in fields]
    listed = [(name, value) for name, value in plain if name in READ | HARMLESS | LACKED]
    features = [feature for name, value in plain if (feature := _lacking(name, value)) is not None]
    refuse_lacking(features, lenient=lenient)
    check_given((name, value) for name, value in listed if name not in TEXTS)
    check_single(listed, LISTS)
    ignored = {feature.name for feature in features}
    for name, value in plain:
        if name == "temperature":
            _check_temperature(value)
        if name not in READ | LACKED and value.casefold() not in OFF:
            ignored.add(name)
    return named(ignored)


def _lacking(name: str, value: str) -> Lacking | None:
    """Return the feature that a field asks for; None where it asks for none, or for one that this server has."""
    if name in LACKED:
        return Lacking(name, always=False) if value.strip() else None
    return lacking(name, value)


def _check_temperature(value: str) -> None:
    """Raises: BadParameter."""
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 <= number <= MAX_TEMPERATURE:
        raise BadParameter(f"temperature: {value[:SHOWN]!r} is not a number from 0 to {MAX_TEMPERATURE:g}")
