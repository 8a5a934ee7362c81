"""Add machine code to a wheel: `python -m model.prebuilt.wheel build/wheels/tutti_asr-VERSION-py3-none-any.whl`.

A warm-up of the wheel's own files gives the types of all arguments. Each kind of processor is then compiled for in a
process of its own, without running the code, and linked by `ld` into one shared library that needs neither numba nor a
certain version of Python. On Linux on x86-64 the wheel no longer requires numba; elsewhere it compiles at the first
call. The language model, which the warm-up stored in its memory layout, is added too.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import importlib
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from model.lm.cache import SUFFIX
from model.machine.native import KINDS, MANIFEST, Kind, kinds_here, source_digest

FOLDER = "model/machine/code"
ELSEWHERE = 'sys_platform != "linux" or platform_machine != "x86_64"'
LINK = ("-shared", "-s", "-Bsymbolic", "--build-id=none", "-z", "noexecstack", "-z", "now", "-z", "relro")
FORMS = ".json"  # suffix of the file with the forms of all functions of a library

Types = Sequence[tuple[str, str, Sequence[Any]]]
"""Module, name and numba's signatures of functions."""


def types_of_all() -> Types:
    """Return the types of all entry points of a server, of which most are run."""
    from model import warm_up
    from model.int8.product import multiplied
    from model.machine.memory import follow

    warm_up.main([])
    warm_up.warm_up_published()
    declared: tuple[Any, ...] = (*warm_up.PUBLISHED, multiplied, follow)
    known = warm_up.used_types()
    names = [function[:2] for function in known]
    more = [(point.py_func.__module__, point.py_func.__qualname__, [warm_up.types_of(point)]) for point in declared]
    all_types = (*known, *(function for function in more if function[:2] not in names))
    return sorted(all_types, key=lambda function: function[:2])


def compile_all(kind: Kind, types: Types, library: Path) -> None:
    """Write the library of these functions, and their forms, for the processor that this process compiles for."""
    from model.machine.native_wrapper import kind_of, object_code, runtime, wrap

    forms: dict[str, list[dict[str, Any]]] = {}
    exported = ("tutti_accept", "tutti_ndarray", "tutti_memmap", "NRT_MemInfo_alloc_aligned", "NRT_MemInfo_call_dtor")
    objects = [object_code(runtime(), exported, kind.processor, kind.features)]
    for module, name, signatures in types:
        function = getattr(importlib.import_module(module), name)
        for signature in signatures:
            function.compile(signature)
            compiled = function.overloads[tuple(signature)]
            symbol = f"tutti_{len(objects)}"
            objects.append(object_code(wrap(symbol, compiled), (symbol,), kind.processor, kind.features))
            result = kind_of(compiled.signature.return_type)
            form = {"symbol": symbol, "arguments": [kind_of(argument) for argument in signature], "result": result}
            forms.setdefault(f"{module}.{name}", []).append(form)
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{number}.o" for number in range(len(objects))]
        for path, code in zip(paths, objects, strict=True):
            path.write_bytes(code)
        linker = shutil.which("ld")
        if linker is None:
            sys.exit("ld is not installed: install binutils")
        subprocess.run([linker, *LINK, "-o", str(library), *map(str, paths)], check=True)  # noqa: S603
    common = {"sources": source_digest(), "functions": forms}
    library.with_suffix(FORMS).write_text(json.dumps(common), encoding="utf-8")


def build(tree: Path, folder: Path, types: Path | None = None, kinds: Sequence[Kind] = KINDS) -> dict[str, bytes]:
    """Return the contents of the libraries and of their manifest by name in a wheel; `tree` has the wheel's sources.

    `folder` is for files in between.
    `types`: a file with pickled `Types`; without it a warm-up finds them. Raises: CalledProcessError.
    """
    if types is None:
        types = folder / "types"
        _run(tree, folder, kinds_here({})[0], "--find-types", str(types))  # its code is then cached for its library

    def build_one(kind: Kind) -> tuple[bytes, Any]:
        library = folder / f"{kind.name}.so"
        _run(tree, folder, kind, "--types", str(types), str(library))
        return library.read_bytes(), json.loads(library.with_suffix(FORMS).read_bytes())

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        built = list(pool.map(build_one, kinds))
    [common] = {json.dumps(forms): forms for _, forms in built}.values()  # the same for all processors
    digests = {kind.name: hashlib.sha256(code).hexdigest() for kind, (code, _) in zip(kinds, built, strict=True)}
    files = {f"{FOLDER}/{kind.name}.so": code for kind, (code, _) in zip(kinds, built, strict=True)}
    return files | {f"{FOLDER}/{MANIFEST}": json.dumps({**common, "libraries": digests}, indent=1).encode()}


def _run(tree: Path, folder: Path, kind: Kind, *options: str) -> None:
    """Run this module's sources in `tree` for a kind of processor."""
    started = time.perf_counter()
    environment = os.environ | {
        "NUMBA_CPU_NAME": kind.processor,
        "NUMBA_CPU_FEATURES": kind.features,
        "NUMBA_CACHE_DIR": str(folder / f"cache-{kind.name}"),
        "PYTHONHASHSEED": "0",
    }
    words = [sys.executable, "-m", "model.prebuilt.wheel", "--kind", kind.name, *options]
    subprocess.run(words, cwd=tree, env=environment, check=True)  # noqa: S603 - of this package
    print(f"{options[0]} for {kind.name}: {time.perf_counter() - started:.0f} s", flush=True)  # noqa: T201


def add_to_wheel(wheel: Path, files: Mapping[str, bytes]) -> None:
    """Write files into a wheel, in the place of those of these names; require the compiler on other machines alone."""
    with zipfile.ZipFile(wheel) as archive:
        contents = {entry.filename: archive.read(entry) for entry in archive.infolist()}
        date = archive.infolist()[0].date_time
    [record] = (name for name in contents if name.endswith(".dist-info/RECORD"))
    metadata = record.replace("RECORD", "METADATA")
    contents[metadata] = re.sub(
        rb"(?m)^(Requires-Dist: (?:numba|llvmlite)[^;\n]*)$", rf"\1; {ELSEWHERE}".encode(), contents[metadata]
    )
    changed = {metadata: contents[metadata], **files}
    rows = [row for row in contents.pop(record).decode().splitlines() if row.split(",")[0] not in changed]
    rows[-1:-1] = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in changed.items()]
    contents |= changed | {record: "".join(f"{row}\n" for row in rows).encode()}
    part = wheel.with_suffix(".part")
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in contents.items():
            entry = zipfile.ZipInfo(name, date)
            entry.external_attr, entry.compress_type = 0o644 << 16, zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    part.replace(wheel)


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


def main() -> None:
    """Build for all kinds and add the code to a wheel, or, in the processes that this starts, do one part of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, nargs="?", metavar="WHEEL", help="wheel of tutti-asr")
    parser.add_argument("--kind", action="append", choices=[kind.name for kind in KINDS], help="only this processor")
    parser.add_argument("--types", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--find-types", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    kinds = [kind for kind in KINDS if options.kind is None or kind.name in options.kind]
    if options.find_types is not None:
        options.find_types.write_bytes(pickle.dumps(types_of_all()))
    elif options.types is not None:
        compile_all(kinds[0], pickle.loads(options.types.read_bytes()), options.path)  # noqa: S301 - of this program
    elif not kinds_here({}):
        sys.exit("machine code is built on Linux on x86-64: without it the wheel compiles where it is installed")
    else:
        with tempfile.TemporaryDirectory() as name, zipfile.ZipFile(options.path) as wheel:
            wheel.extractall(tree := Path(name) / "tree")
            files = build(tree, Path(name), kinds=kinds)
            kept = {path.relative_to(tree).as_posix(): path.read_bytes() for path in sorted(tree.rglob(f"*{SUFFIX}"))}
            add_to_wheel(options.path, files | kept)  # and the language model in its memory layout
        print(f"{options.path}: {options.path.stat().st_size / 1e6:.1f} MB")  # noqa: T201


if __name__ == "__main__":
    main()
