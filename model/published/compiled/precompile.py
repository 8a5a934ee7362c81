"""Compilation of the steps of published networks before a model is there, for images whose file system is read-only."""

from __future__ import annotations

from typing import Any, get_args, get_origin, get_type_hints

import numba

from model.published.compiled.fastconformer import step as fastconformer
from model.published.compiled.zipformer2 import step as zipformer2

ENTRY_POINTS = (fastconformer.step, fastconformer.project_positions, zipformer2.step)


def precompile(function: Any) -> None:
    """Compile an entry point for its annotated arguments, integers and tuples of them, and cache the code."""
    hints = get_type_hints(function.py_func)
    del hints["return"]
    types: Any = numba.typeof
    function.compile(tuple(types(example(kind)) for kind in hints.values()))


def example(kind: Any) -> Any:
    """Return a value of a type: 0, or a tuple of such values."""
    if hasattr(kind, "_fields"):  # a NamedTuple
        hints = get_type_hints(kind)
        return kind(*(example(hints[name]) for name in kind._fields))
    if get_origin(kind) is tuple:
        return tuple(example(each) for each in get_args(kind))
    return 0
