"""Names of compiled functions: cached code of several processes is linked in one, so no two functions share a name."""

from __future__ import annotations

import importlib
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from numba.core.dispatcher import Dispatcher

from model.int8.product import WAYS, make_multiply
from model.machine.instructions import instruction_set
from model.machine.native import SOURCES


def reached(function: Any) -> Iterator[Any]:
    """Yield a compiled function and those in its closure."""
    yield function.py_func
    for cell in function.py_func.__closure__ or ():
        if issubclass(type(cell.cell_contents), Dispatcher):
            yield from reached(cell.cell_contents)


def test_no_two_compiled_functions_have_the_same_name() -> None:
    """numba tells variants of a name apart by a counter that is not the same in every process."""
    modules = [importlib.import_module("model." + name.replace("/", ".")) for name in SOURCES]
    functions = [each for module in modules for each in vars(module).values() if issubclass(type(each), Dispatcher)]
    functions += [make_multiply(instructions) for instructions in WAYS]
    found: dict[tuple[str, str], set[Any]] = defaultdict(set)
    for function in functions:
        for each in reached(function):
            closed = tuple(id(cell.cell_contents) for cell in each.__closure__ or ())
            found[each.__module__, each.__qualname__].add(closed)
    assert len(found) > 100
    assert sum("make_strip" in name for _, name in found) > 3
    twice = {name for name, functions in found.items() if len(functions) > 1}
    own = ("make_multiply.<locals>.multiply", "make_even_strip.<locals>.even_strip")
    # the module's and this test's have the same code
    assert twice <= {("model.int8.product", f"{each}.{instruction_set()}") for each in own}
