"""Records launches of Triton kernels instead of running them, and compiles them without a GPU to machine code."""

import os
import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

TARGET = GPUTarget("cuda", 90, 32)
TYPES = {torch.float16: "fp16", torch.float32: "fp32", torch.int32: "i32", torch.int16: "i16"}
OPTIONS = {"num_warps", "num_stages", "enable_fp_fusion", "launch_pdl", "maxnreg"}


@dataclass(frozen=True)
class Launch:
    """A kernel, its compile-time arguments, and its grid."""

    fn: JITFunction
    signature: tuple
    constants: tuple
    attributes: tuple
    options: tuple
    grid: tuple

    @property
    def kernel(self):
        """Everything that determines the machine code."""
        return self.fn.__name__, self.signature, self.constants, self.attributes, self.options


def recorded(monkeypatch, call):
    """Return the launches of `call()`, in order."""
    launches = []

    def run(fn, *args, grid, warmup, **named):
        launches.append(_launch(fn, args, grid, named))

    monkeypatch.setattr(JITFunction, "run", run)
    call()
    return launches


def _launch(fn, args, grid, named):
    options = {k: v for k, v in named.items() if k in OPTIONS}
    values = dict(zip(fn.arg_names, args, strict=False)) | {k: v for k, v in named.items() if k not in OPTIONS}
    signature, constants, attributes = {}, {}, {}
    for i, parameter in enumerate(fn.params):
        value = values[parameter.name]
        if parameter.is_constexpr or (isinstance(value, int) and value == 1 and not parameter.do_not_specialize):
            signature[parameter.name], constants[parameter.name] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[parameter.name] = "*" + TYPES[value.dtype]
            if value.storage_offset() * value.element_size() % 16 == 0:
                attributes[i,] = (("tt.divisibility", 16),)
        else:
            signature[parameter.name] = "i32"
            if value % 16 == 0 and not parameter.do_not_specialize:
                attributes[i,] = (("tt.divisibility", 16),)
    return Launch(
        fn, tuple(signature.items()), tuple(constants.items()), tuple(attributes.items()), tuple(options.items()),
        tuple(grid),
    )  # fmt: skip


@dataclass(frozen=True)
class Code:
    """Figures of a compiled kernel."""

    registers: int
    stack: int
    shared_bytes: int
    instructions: Counter
    lines: list

    def count(self, pattern):
        """Count instructions whose name matches a regular expression."""
        return sum(n for name, n in self.instructions.items() if re.match(pattern, name))

    def places(self, pattern):
        """Return the positions of instructions whose name matches a regular expression."""
        return [i for i, line in enumerate(self.lines) if re.match(pattern, _name(line))]


def _name(line):
    return re.sub(r"^@!?U?P[T\d]+\s+", "", line).split()[0]


def compiled(launch):
    """Compile for sm_90 and read the machine code."""
    attributes = {k: [list(v) for v in pairs] for k, pairs in launch.attributes}
    source = ASTSource(
        fn=launch.fn, signature=dict(launch.signature), constexprs=dict(launch.constants), attrs=attributes
    )
    kernel = triton.compile(source, target=TARGET, options=dict(launch.options))
    binaries = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(kernel.asm["cubin"])
        usage, sass = (
            subprocess.run(
                [os.fspath(binaries / "cuobjdump"), option, os.fspath(cubin)],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            for option in ("-res-usage", "-sass")
        )
    lines = re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(.*?);", sass, re.MULTILINE)
    names = Counter(map(_name, lines))
    registers, stack = (int(re.search(rf"{name}:(\d+)", usage)[1]) for name in ("REG", "STACK"))
    return Code(registers, stack, kernel.metadata.shared, names, lines)
