"""Checks of the values of settings, for pydantic. Raise ValueError with what is wrong."""

from __future__ import annotations

import json
import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from model.whisper import folder_of
from server.configuration.addresses import listen_address

DAY_S = 86_400  # of the longest live connection
Seconds = Annotated[float, Field(ge=0.05, le=DAY_S)]
"""A time limit: neither one that no client can meet nor one that no connection reaches."""


def url_of(*schemes: str) -> AfterValidator:
    """Return the check of an address with one of these schemes."""

    def check(text: str) -> str:
        try:
            parts = urlsplit(text)
            valid = parts.scheme in schemes and parts.hostname and parts.port != 0 and not re.search(r"\s", text)
        except ValueError:  # a bad port, or bad brackets
            valid = None
        if not valid:
            raise ValueError(f"must be an address that begins with {' or '.join(f'{scheme}://' for scheme in schemes)}")
        return text

    return AfterValidator(check)


def own_address(value: object) -> str:
    """Check the address of a port of its own, which may be a number."""
    listen_address(f"{value}")
    return f"{value}"


def table(value: object) -> object:
    """Let a table be JSON."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        raise ValueError("is not JSON") from None


def whisper_folder(text: str) -> str:
    """Check `whisper:DIR`."""
    folder_of(text)
    return text


def bad_setting(name: str, problem: str) -> PydanticCustomError:
    """Return the error of one setting, for validators of several: `settings` of its context names the setting."""
    return PydanticCustomError("setting", "{problem}", {"problem": problem, "settings": (name,)})
