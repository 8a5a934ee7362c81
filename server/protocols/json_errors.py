"""What is wrong with a client's JSON message: the path of the field, and its valid values. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec.inspect import LiteralType, StructType, UnionType, type_info

from server.protocols.features import SHOWN

_AT = " - at `$"  # precedes the path in an error of msgspec
_FIELD = re.compile(r"Object (contains unknown|missing required) field `(.*)`", re.DOTALL)
_ENUM = re.compile(r"Invalid enum value (.*)", re.DOTALL)
_INDEX = re.compile(r"\[[^]]*\]")  # of a list, in a path


def problem_of(error: msgspec.ValidationError, kind: Any, root: str = "") -> str:
    """Return `path: what is wrong` of a message decoded as `kind`; `root` is the path of the message itself."""
    what, _, at = str(error).rpartition(_AT) if _AT in str(error) else (str(error), "", "")
    path = [name[:SHOWN] for name in _INDEX.sub("", at.rstrip("`")).split(".") if name]
    if (field := _FIELD.fullmatch(what)) is not None:
        path.append(field[2][:SHOWN])
        what = "missing" if field[1].startswith("missing") else "unknown field; leave it out"
    elif (enum := _ENUM.fullmatch(what)) is not None:
        what = f"{enum[1][:SHOWN]} is not valid; must be one of {', '.join(map(str, _choices(kind, path)))}"
    else:
        what = what[:1].lower() + what[1:].replace("`", "").replace(" | ", " or ")
    shown = ".".join(filter(None, (root, *path)))
    return f"{shown}: {what}" if shown else what


def _choices(kind: Any, path: Sequence[str]) -> Iterator[Any]:
    """Yield the values of the enumeration at a path."""
    found = list(_alternatives(type_info(kind)))
    for name in path:
        structs = [each for each in found if isinstance(each, StructType)]
        fields = [field for struct in structs for field in struct.fields if field.encode_name == name]
        found = [alternative for field in fields for alternative in _alternatives(field.type)]
    for each in found:
        if isinstance(each, LiteralType):
            yield from each.values


def _alternatives(info: Any) -> Sequence[Any]:
    return info.types if isinstance(info, UnionType) else (info,)
