"""Object code of one entry point with a plain C interface, which `model.machine.native` calls without numba.

A function takes its arguments in their order: an integer as 64 bits, a float as 64 bits, an array as the address of the
Python object, a tuple as the address of its numbers, 8 bytes each, with those of inner tuples in their place. The last
argument is the address of the results, if there are any. It returns 0, -1 if an array is not of the type that the code
was compiled for, or 1 if the code raised.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba.core import cgutils as _cgutils
from numba.core import registry
from numba.core import types as _types
from numba.np import arrayobj as _arrayobj
from numba.np import numpy_support

arrayobj: Any = _arrayobj  # without types, as the others
cgutils: Any = _cgutils
types: Any = _types

I8, I32, I64, F64 = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.DoubleType()
ADDRESS = I8.as_pointer()
ACCEPTED = ("tutti_ndarray", "tutti_memmap")
"""Global variables with the addresses of the types of arrays that are accepted; `tutti_accept` sets them."""
EXACT = {"ceil", "fabs", "floor", "sqrt", "trunc"}  # functions of the C library with the same bits everywhere
PROVIDED = EXACT | {"malloc", "free", "sched_yield", "NRT_MemInfo_alloc_aligned", "NRT_MemInfo_call_dtor"}
"""Functions that shipped code may call: the C library's, and those of `runtime`."""
# numpy's fields after an object's head of 16 bytes; source: numpy/ndarraytypes.h, PyArrayObject_fields, PyArray_Descr
TYPE, DATA, AXES, LENGTHS, STEPS, KIND, FLAGS = 8, 16, 24, 32, 40, 56, 64
BYTE_ORDER, NUMBER = 26, 28
C_ORDER, FORTRAN_ORDER, ALIGNED = 1, 2, 0x100
BYTES_OF_HEADER, LARGEST_ALIGNMENT = 48, 64  # of memory that compiled code allocates; source: numba, nrt.cpp, MemInfo


class Wrapper:
    """Builder of the function that converts arguments, calls the compiled function and stores its results."""

    def __init__(self, symbol: str, compiled: Any) -> None:
        """`compiled`: numba's result of one compilation."""
        self.context = registry.cpu_target.target_context
        self.library = self.context.codegen().create_library(symbol)
        module = self.library.create_ir_module(symbol)
        signature = compiled.signature
        results = [] if signature.return_type == types.none else [I64.as_pointer()]
        forms = [_argument(kind) for kind in signature.args]
        made = ir.Function(module, ir.FunctionType(I32, [*forms, *results]), symbol)
        self.builder = ir.IRBuilder(made.append_basic_block())
        self.types = [cgutils.add_global_variable(module, ADDRESS, name) for name in ACCEPTED]
        values = [self._value(kind, raw) for kind, raw in zip(signature.args, made.args, strict=False)]
        form = self.context.call_conv.get_function_type(signature.return_type, signature.args)
        inner = ir.Function(module, form, compiled.fndesc.llvm_func_name)
        status, result = self.context.call_conv.call_function(
            self.builder, inner, signature.return_type, signature.args, values
        )
        with self.builder.if_then(status.is_error, likely=False):
            self.builder.ret(I32(1))
        if results:
            self._store(signature.return_type, result, made.args[-1])
        self.builder.ret(I32(0))
        self.library.add_ir_module(module)
        self.library._final_module.link_in(compiled.library._get_module_for_linking(), preserve=True)

    def _value(self, kind: Any, raw: Any) -> Any:
        """Return an argument in the compiler's form, from the form in which it is passed."""
        if isinstance(kind, types.Array):
            return self._array(kind, raw)
        if isinstance(kind, types.BaseTuple):
            return self._tuple(kind, self.builder.bitcast(raw, I64.as_pointer()), 0)[0]
        if isinstance(kind, types.Float):
            return raw if kind.bitwidth == F64_BITS else self.builder.fptrunc(raw, ir.FloatType())
        if isinstance(kind, types.Boolean):
            return self.builder.icmp_unsigned("!=", raw, I64(0))
        return raw if kind.bitwidth == I64.width else self.builder.trunc(raw, ir.IntType(kind.bitwidth))

    def _tuple(self, kind: Any, words: Any, at: int) -> tuple[Any, int]:
        """Return a tuple from the words at index `at` on, and the index after them."""
        values = []
        for part in kind.types:
            if isinstance(part, types.BaseTuple):
                value, at = self._tuple(part, words, at)
            else:
                word = self.builder.load(self.builder.gep(words, [I64(at)]))
                if isinstance(part, types.Array):
                    word = self.builder.inttoptr(word, ADDRESS)
                elif isinstance(part, types.Float):
                    word = self.builder.bitcast(word, F64)
                value, at = self._value(part, word), at + 1
            values.append(value)
        return self.context.make_tuple(self.builder, kind, values), at

    def _array(self, kind: Any, item: Any) -> Any:
        """Return an array from the address of the Python object; the function ends if it is of another type."""
        builder = self.builder
        own = self._load(item, TYPE, ADDRESS)
        one_of = [builder.icmp_unsigned("==", own, builder.load(accepted)) for accepted in self.types]
        self._require(builder.or_(*one_of))
        self._require(builder.icmp_unsigned("==", self._load(item, AXES, I32), I32(kind.ndim)))
        flags = ALIGNED | {"C": C_ORDER, "F": FORTRAN_ORDER, "A": 0}[kind.layout]
        self._require(builder.icmp_unsigned("==", builder.and_(self._load(item, FLAGS, I32), I32(flags)), I32(flags)))
        element = self._load(item, KIND, ADDRESS)
        self._require(builder.icmp_unsigned("!=", self._load(element, BYTE_ORDER, I8), I8(ord(">"))))
        number = self._load(element, NUMBER, I32)
        for twin, usual in ((np.longlong, np.int64), (np.ulonglong, np.uint64)):  # two numbers for one type
            same = builder.icmp_unsigned("==", number, I32(np.dtype(twin).num))
            number = builder.select(same, I32(np.dtype(usual).num), number)
        dtype = numpy_support.as_dtype(kind.dtype)
        self._require(builder.icmp_unsigned("==", number, I32(dtype.num)))
        made = self.context.make_array(kind)(self.context, builder)
        lengths, steps = (self._longs(item, field, kind.ndim) for field in (LENGTHS, STEPS))
        data = builder.bitcast(self._load(item, DATA, ADDRESS), made.data.type)
        arrayobj.populate_array(made, data, lengths, steps, dtype.itemsize, None)
        return made._getvalue()

    def _longs(self, item: Any, offset: int, count: int) -> list[Any]:
        first = self._load(item, offset, I64.as_pointer())
        return [self.builder.load(self.builder.gep(first, [I64(at)])) for at in range(count)]

    def _load(self, item: Any, offset: int, kind: Any) -> Any:
        field = self.builder.gep(item, [I64(offset)])
        return self.builder.load(self.builder.bitcast(field, kind.as_pointer()))

    def _require(self, condition: Any) -> None:
        with self.builder.if_then(self.builder.not_(condition), likely=False):
            self.builder.ret(I32(-1))

    def _store(self, kind: Any, result: Any, out: Any) -> None:
        builder = self.builder
        kinds = list(kind.types) if isinstance(kind, types.BaseTuple) else [kind]
        values = cgutils.unpack_tuple(builder, result, len(kinds)) if isinstance(kind, types.BaseTuple) else [result]
        for at, (part, value) in enumerate(zip(kinds, values, strict=True)):
            if isinstance(part, types.Float):
                word = builder.bitcast(value, I64)
            else:
                word = value if part.bitwidth == I64.width else builder.sext(value, I64)
            builder.store(word, builder.gep(out, [I64(at)]))


F64_BITS = 64


def _argument(kind: Any) -> Any:
    if isinstance(kind, types.Array | types.BaseTuple):
        return ADDRESS
    return F64 if isinstance(kind, types.Float) else I64


def kind_of(kind: Any) -> Any:
    """Return the kind of an argument or a result as `model.machine.native` reads it. Raises: TypeError."""
    if kind == types.none:
        return None
    if isinstance(kind, types.BaseTuple):
        return [kind_of(part) for part in kind.types]
    for of, letter in ((types.Array, "a"), (types.Float, "d"), (types.Integer | types.Boolean, "i")):
        if isinstance(kind, of):
            return letter
    raise TypeError(f"{kind} cannot be passed to shipped code")


def wrap(symbol: str, compiled: Any) -> Any:
    """Return LLVM's module with one exported function."""
    return Wrapper(symbol, compiled).library._final_module


def runtime() -> Any:
    """Return LLVM's module with the accepted types of arrays and the memory that compiled code allocates."""
    library = registry.cpu_target.target_context.codegen().create_library("runtime")
    module = library.create_ir_module("runtime")
    for name in ACCEPTED:
        cgutils.add_global_variable(module, ADDRESS, name).initializer = ir.Constant(ADDRESS, None)
    accept, builder = _function(module, "tutti_accept", ir.VoidType(), [ADDRESS] * len(ACCEPTED))
    for name, kind in zip(ACCEPTED, accept.args, strict=True):
        builder.store(kind, module.get_global(name))
    builder.ret_void()
    allocate = ir.Function(module, ir.FunctionType(ADDRESS, [I64]), "malloc")
    release = ir.Function(module, ir.FunctionType(ir.VoidType(), [ADDRESS]), "free")
    _allocation(module, allocate)
    end, builder = _function(module, "NRT_MemInfo_call_dtor", ir.VoidType(), [ADDRESS])
    builder.call(release, end.args)
    builder.ret_void()
    library.add_ir_module(module)
    return library._final_module


def _function(module: Any, name: str, result: Any, arguments: list[Any]) -> tuple[Any, Any]:
    made = ir.Function(module, ir.FunctionType(result, arguments), name)
    return made, ir.IRBuilder(made.append_basic_block())


def _allocation(module: Any, allocate: Any) -> None:
    """Define numba's allocation: a header that counts one reference, then the data, aligned."""
    made, builder = _function(module, "NRT_MemInfo_alloc_aligned", ADDRESS, [I64, I32])
    made.args[0].name = "size"
    header = builder.call(allocate, [builder.add(made.args[0], I64(BYTES_OF_HEADER + LARGEST_ALIGNMENT))])
    with builder.if_then(builder.icmp_unsigned("==", header, ir.Constant(ADDRESS, None)), likely=False):
        builder.ret(header)
    past = builder.add(builder.ptrtoint(header, I64), I64(BYTES_OF_HEADER + LARGEST_ALIGNMENT - 1))
    data = builder.and_(past, I64(-LARGEST_ALIGNMENT))
    words = builder.bitcast(header, I64.as_pointer())
    for at, word in enumerate((I64(1), I64(0), I64(0), data, made.args[0], I64(0))):
        builder.store(word, builder.gep(words, [I64(at)]))
    builder.ret(header)


def object_code(module: Any, exported: tuple[str, ...], processor: str, features: str) -> bytes:
    """Compile a module for a processor, with every function but the exported ones internal to it."""
    target = binding.Target.from_triple(binding.get_process_triple())
    machine = target.create_target_machine(cpu=processor, features=features, opt=3, reloc="pic", codemodel="default")
    for value in (*module.functions, *module.global_variables):
        if not value.is_declaration and value.name not in exported:
            value.linkage = "internal"
    passes = binding.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(module, binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(3)))
    declared = {function.name for function in module.functions if function.is_declaration}
    if outside := {name for name in declared if not name.startswith("llvm.")} - PROVIDED:
        raise TypeError(f"{exported[0]}: shipped code cannot call {', '.join(sorted(outside))}")
    code: bytes = machine.emit_object(module)
    return code
