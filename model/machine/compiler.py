"""The compiler of inner loops: numba and llvmlite, or a stand-in for both where shipped machine code runs.

Modules with compiled functions take both from here. With shipped code their decorators and generators of code have
nothing to do, and numba need not be installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from model.errors import require
from model.machine import native

LIBRARY = native.shipped(native.source_digest(), native.FOLDER)
"""Shipped code for this processor; None: functions are compiled at their first call."""


class _Absent:
    """Stand-in for a module, a class, a decorator and whatever they make."""

    def __getattr__(self, name: str) -> _Absent:
        if name.startswith("__"):  # of code that inspects objects
            raise AttributeError(name)
        return self

    def __call__(self, *_arguments: object, **_options: object) -> _Absent:
        return self

    def __mro_entries__(self, _bases: tuple[object, ...]) -> tuple[type, ...]:
        return ()


if LIBRARY is None:
    require("numba", "compiler", "this processor, for which the installation has no machine code,")


def _module(name: str) -> Any:
    return import_module(name) if LIBRARY is None else _Absent()


numba, caching, config = _module("numba"), _module("numba.core.caching"), _module("numba.core.config")
cgutils, errors, typing = _module("numba.core.cgutils"), _module("numba.core.errors"), _module("numba.core.typing")
event, extending, types = _module("numba.core.event"), _module("numba.extending"), _module("numba.core.types")
binding, ir = _module("llvmlite.binding"), _module("llvmlite.ir")
