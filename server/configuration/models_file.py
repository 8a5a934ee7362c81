"""Which models a replica serves, as operators write it: `NAME=PATH`, or tables of a file. Loads nothing."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from model.config import MAX_BEAMS, shipped_named
from model.text.files import read_text
from server.errors import SettingsError

NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"  # safe in a URL, in a metric label and in a header
NAME_SAID = "1 to 64 letters A-Z and a-z, digits, '_', '.' and '-', the first a letter or a digit"
_NAMED = re.compile(rf"({NAME})=(.+)")
TABLE = "model"  # of the file: an array of tables


class ModelEntry(BaseModel):
    """One model. What is None is as the other settings say."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=f"^{NAME}$")
    path: Path
    languages: tuple[str, ...] = ()  # none: those that the model declares, or the one that its name is a tag of
    decoder: Literal["auto", "greedy", "beam"] | None = None
    beams: int | None = Field(default=None, ge=1, le=MAX_BEAMS)
    lm: Literal["off"] | Path | None = None
    device: Literal["auto", "cpu", "cuda"] | None = None
    precision: Literal["auto", "int8", "bf16", "fp32", "fp16"] | None = None
    default: bool = False
    on_demand: bool = False  # loaded with the first request for it
    drop_words_in_noise: bool | None = (
        None  # of a published model: words in audio of constant level; else it keeps them
    )

    @property
    def own(self) -> dict[str, object]:
        """Its settings, by the names of those that they replace."""
        own: dict[str, object] = {"decoder": self.decoder, "beams": self.beams, "lm": self.lm}
        own |= {"device": self.device, "precision": self.precision}
        return {"model": self.path} | {name: value for name, value in own.items() if value is not None}


def named_models(texts: Sequence[str]) -> tuple[ModelEntry, ...]:
    """Read `NAME=PATH`, each of which may be several with commas between. Raises: ValueError."""
    given = [part.strip() for text in texts for part in text.split(",")]
    found = [_NAMED.fullmatch(part) for part in given]
    for part, match in zip(given, found, strict=True):
        if match is None:
            raise ValueError(f"{part!r} is not NAME=PATH, as each of several models has to be; NAME: {NAME_SAID}")
    return distinct(ModelEntry(name=match[1], path=Path(match[2])) for match in found if match is not None)


def is_named(text: str) -> bool:
    """Whether a text is `NAME=PATH` and no path alone; a path with such a beginning is written `./a=b`."""
    return _NAMED.fullmatch(text) is not None


def read_models(file: Path) -> tuple[ModelEntry, ...]:
    """Read the tables `[[model]]` of a file, the default first; paths are relative to it. Raises: SettingsError."""
    try:
        document = tomllib.loads(read_text(file, lambda problem: SettingsError(f"models_file: {problem}")))
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"models_file: {file}: {error}") from error
    tables = document.pop(TABLE, None)
    if document or not isinstance(tables, list) or not tables:
        wrong = f"the key {next(iter(document))!r} is not known" if document else "there is no table"
        raise SettingsError(f"models_file: {file}: {wrong}; each model is a table [[{TABLE}]]")
    entries = [_entry(file, number, table) for number, table in enumerate(tables, start=1)]
    try:
        return distinct(entries)
    except ValueError as error:
        raise SettingsError(f"models_file: {file}: {error}") from error


def _entry(file: Path, number: int, table: Any) -> ModelEntry:
    """Raises: SettingsError, which names the table and the key."""
    called = f" ({table['name']!r})" if isinstance(table, dict) and isinstance(table.get("name"), str) else ""
    try:
        entry = ModelEntry.model_validate(table)
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(str(part) for part in problem["loc"]) or "the table"
        said = _said(problem)
        raise SettingsError(f"models_file: {file}: [[{TABLE}]] {number}{called}: {key}: {said}") from None
    lm = entry.lm if entry.lm is None or entry.lm == "off" else file.parent / entry.lm
    return entry.model_copy(update={"path": _path(file.parent, entry.path), "lm": lm})


def _said(problem: Any) -> str:
    if problem["type"] == "extra_forbidden":
        return f"is not a key of a model; valid are {', '.join(ModelEntry.model_fields)}"
    if problem["type"] == "string_pattern_mismatch":
        return f"{str(problem['input'])[:70]!r} is not a name: {NAME_SAID}"
    return str(problem["msg"]).lower()


def _path(folder: Path, path: Path) -> Path:
    """A path relative to the file's folder; a shipped model's name that is no file there stays."""
    found = folder / path
    return path if shipped_named(f"{path}") and not found.exists() else found


def distinct(entries: Iterable[ModelEntry]) -> tuple[ModelEntry, ...]:
    """Return entries with names of their own, the default first. Raises: ValueError."""
    listed = list(entries)
    names: set[str] = set()
    for entry in listed:
        if entry.name.casefold() in names:
            raise ValueError(f"name: two models are named {entry.name!r}")
        names.add(entry.name.casefold())
    if listed and all(entry.on_demand for entry in listed):
        raise ValueError("on_demand: one model has to be loaded at the start, the default")
    defaults = [entry.name for entry in listed if entry.default]
    if len(defaults) > 1:
        raise ValueError(f"default: only one model can be the default, and {' and '.join(map(repr, defaults))} are")
    waiting = [entry.name for entry in listed if entry.default and entry.on_demand]
    if waiting:
        raise ValueError(f"on_demand: {waiting[0]!r} is the default, which is loaded at the start")
    return tuple(sorted(listed, key=lambda entry: (not entry.default, entry.on_demand)))
