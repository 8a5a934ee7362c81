"""Pointers to rows of numbers, for compiled code that passes them between functions.

numba passes an array by value, as seven words or more, and a call of the beam search would pass three hundred words. A
pointer is one word, and its number of columns is part of its type, so that places in a row are constants. It has no
length and no bounds, and an index below zero is not counted from the end. It keeps nothing alive: the owner of the
memory must outlive the call.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from model.machine.compiler import cgutils as _cgutils
from model.machine.compiler import errors, ir
from model.machine.compiler import extending as _extending
from model.machine.compiler import types as _types
from model.machine.compiler import typing as _typing

INT32, INT64, UINT64 = _types.int32, _types.int64, _types.uint64
FLOAT32, FLOAT64 = _types.float32, _types.float64


class Pointer(_types.Type):  # type: ignore[misc]
    """Type of a pointer to `element`s; `columns` of each row, 0 if each is a row of its own."""

    def __init__(self, element: Any, columns: int) -> None:
        self.element, self.columns = element, columns
        super().__init__(f"Pointer({element}, {columns})")

    def item(self, index: Any) -> Any:
        """Return the type found at an index: a number, or a pointer to a row."""
        if isinstance(index, _types.Integer):
            return Pointer(self.element, 0) if self.columns else self.element
        if self.columns and isinstance(index, _types.BaseTuple) and len(index) == 2:
            return self.element
        raise errors.TypingError(f"{self} has no item at {index}")


@_extending.register_model(Pointer)
class PointerModel(_extending.models.PrimitiveModel):  # type: ignore[misc]
    """An address in a register."""

    def __init__(self, manager: Any, pointer: Pointer) -> None:
        super().__init__(manager, pointer, manager.lookup(pointer.element).get_data_type().as_pointer())


@_typing.templates.infer_global(operator.getitem)
class _Get(_typing.templates.AbstractTemplate):  # type: ignore[misc]
    def generic(self, args: Any, _keywords: Any) -> Any:
        """Type `pointer[index]`."""
        pointer, index = args
        return _typing.signature(pointer.item(index), pointer, index) if isinstance(pointer, Pointer) else None


@_typing.templates.infer_global(operator.setitem)
class _Set(_typing.templates.AbstractTemplate):  # type: ignore[misc]
    def generic(self, args: Any, _keywords: Any) -> Any:
        """Type `pointer[index] = value`, which converts the value."""
        pointer, index, _ = args
        return _typing.signature(_types.none, pointer, index, pointer.element) if isinstance(pointer, Pointer) else None


def _place(context: Any, builder: Any, arguments: Any, kind: Pointer, index: Any) -> Any:
    """Address of the number, or of the first number of the row, at an index."""
    pointer, at = arguments[:2]

    def widened(number: Any, type_: Any) -> Any:
        return context.cast(builder, number, type_, _types.intp)

    if isinstance(index, _types.Integer):
        row, column = widened(at, index), None
    else:
        row, column = (widened(_cgutils.unpack_tuple(builder, at, 2)[n], index[n]) for n in (0, 1))
    if kind.columns:
        row = builder.mul(row, ir.Constant(row.type, kind.columns))
    if column is not None:
        row = builder.add(row, column)
    return builder.gep(pointer, [row])


@_extending.lower_builtin(operator.getitem, Pointer, _types.Integer)  # type: ignore[untyped-decorator]
@_extending.lower_builtin(operator.getitem, Pointer, _types.BaseTuple)  # type: ignore[untyped-decorator]
def _load(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    kind, index = signature.args
    place = _place(context, builder, arguments, kind, index)
    if isinstance(signature.return_type, Pointer):
        return place
    return context.unpack_value(builder, kind.element, place)


@_extending.lower_builtin(operator.setitem, Pointer, _types.Integer, _types.Any)  # type: ignore[untyped-decorator]
@_extending.lower_builtin(operator.setitem, Pointer, _types.BaseTuple, _types.Any)  # type: ignore[untyped-decorator]
def _store(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    kind, index, _ = signature.args
    context.pack_value(builder, kind.element, arguments[2], _place(context, builder, arguments, kind, index))
    return context.get_dummy_value()


def pointer_at(element: Any, columns: int = 0) -> Callable[[int], Any]:
    """Return a compiled conversion of an address to a pointer to rows of `columns` numbers, or to single numbers."""

    def at_address(_context: Any, _address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return Pointer(element, columns)(_types.int64), generate

    made: Callable[[int], Any] = _extending.intrinsic(at_address)
    return made


@_extending.intrinsic  # type: ignore[untyped-decorator]
def address_of(_context: Any, array: Any) -> Any:
    """Address of the first element of a compiled function's contiguous array."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.ptrtoint(data, context.get_value_type(_types.int64))

    return _types.int64(array), generate
