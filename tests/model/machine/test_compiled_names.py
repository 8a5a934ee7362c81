"""Names of compiled functions: cached code of several processes is linked in one, so no two functions share a name."""

from __future__ import annotations

import gc
import importlib
from collections import defaultdict
from typing import Any

from numba.core.dispatcher import Dispatcher

from model.int8.product import WAYS, make_multiply
from model.machine.compiled import SOURCES
from model.machine.instructions import instruction_set


def test_no_two_compiled_functions_have_the_same_name() -> None:
    """numba tells variants of a name apart by a counter that is not the same in every process."""
    for name in SOURCES:
        importlib.import_module("model." + name.replace("/", "."))
    kept = [make_multiply(instructions) for instructions in WAYS]
    found: dict[tuple[str, str], set[Any]] = defaultdict(set)
    for each in gc.get_objects():
        if issubclass(type(each), Dispatcher) and (function := each.py_func).__module__.startswith("model."):
            closed = tuple(id(cell.cell_contents) for cell in function.__closure__ or ())
            found[function.__module__, function.__qualname__].add(closed)
    del kept
    assert len(found) > 100
    twice = {name for name, functions in found.items() if len(functions) > 1}
    own = f"make_multiply.<locals>.multiply.{instruction_set()}"  # the module's and this test's have the same code
    assert twice <= {("model.int8.product", own)}
