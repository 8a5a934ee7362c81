"""Languages that a model takes as an input: the number of each, and which one is meant by a language tag. Pure.

Source: the metadata of sherpa-onnx's exports, `prompt_dictionary` (JSON: language to number) and `auto_prompt_id`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from model.config import MACRO_LANGUAGES

AUTO = "auto"  # the entry with which the model finds the language itself
MULTI = "multi"  # Deepgram's word for it
_TAG = re.compile(r"[A-Za-z]{2,3}([-_][A-Za-z0-9]{2,8})*")


@dataclass(frozen=True, slots=True)
class Prompts:
    """Numbers by language, in the order of the model, and the number with which it finds the language itself."""

    numbers: Mapping[str, int]
    automatic: int

    @classmethod
    def read(cls, dictionary: str, automatic: str | None) -> Prompts:
        """Read both values of the metadata. Raises: ValueError with the reason."""
        numbers = json.loads(dictionary)
        if not isinstance(numbers, dict) or not all(type(number) is int and number >= 0 for number in numbers.values()):
            raise ValueError("it is no object of languages and their numbers")
        any_language = int(automatic) if automatic is not None else numbers.get(AUTO)
        if any_language is None:
            raise ValueError(f"it has no {AUTO!r}, and 'auto_prompt_id' is missing")
        return cls({name: number for name, number in numbers.items() if _TAG.fullmatch(name)}, any_language)

    @property
    def count(self) -> int:
        """Numbers that a graph must have room for."""
        return max(*self.numbers.values(), self.automatic) + 1

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages, one tag for each number: the most specific one."""
        tags: dict[int, str] = {}
        for name, number in self.numbers.items():
            if len(name) > len(tags.get(number, "")):
                tags[number] = name
        return tuple(tag.replace("_", "-") for tag in tags.values())

    def number_of(self, language: str) -> int | None:
        """Return the number of a language; of its base language if it has none, of the first with that base.

        Case and `_` for `-` make no difference. Returns: None for a language that the model does not have.
        """
        wanted = _parts(language)
        by_tag = {tuple(_parts(name)): number for name, number in reversed(list(self.numbers.items()))}
        by_base = {parts[0]: number for parts, number in by_tag.items()}
        return by_tag.get(tuple(wanted), by_tag.get((wanted[0],), by_base.get(wanted[0])))

    def choice(self, language: str | None) -> int | None:
        """Return the number for a stream's language, the automatic one if it states none; None if it is unknown."""
        if not language or language.casefold() in (AUTO, MULTI):
            return self.automatic
        return self.number_of(language)


def _parts(tag: str) -> list[str]:
    first, *rest = tag.replace("_", "-").lower().split("-")
    return [MACRO_LANGUAGES.get(first, first), *rest]
