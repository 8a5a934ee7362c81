"""Files of a published model: finds the graphs and the tokens in a folder.

A folder has one graph (CTC) or an encoder, a decoder and a joiner (transducers), and `tokens.txt`. If a graph exists in
floats and as `….int8.onnx`, the requested precision decides. Nothing here knows what a graph computes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from model.errors import PublishedModelError, require
from model.published.graphs.onnx_file import external_files

TOKENS = "tokens.txt"
ROLES = ("encoder", "decoder", "joiner")
INT8 = ".int8.onnx"
WEIGHTS = (".onnx", ".data", ".weights")  # endings of files with weights

Rewriting = Literal["auto", "off"]
"""Whether a compiled step may run instead of a published graph."""


@dataclass(frozen=True, slots=True)
class PublishedFiles:
    """Graphs by role: `model`, or `encoder`, `decoder` and `joiner`; `data`: files with weights of the graphs."""

    folder: Path
    graphs: Mapping[str, Path]
    tokens: Path
    data: Sequence[Path] = ()

    @classmethod
    def of(cls, folder: Path, graphs: Mapping[str, Path]) -> PublishedFiles:
        """Return the files of these graphs in a folder. Raises: PublishedModelError if one is missing."""
        data = dict.fromkeys(file for path in graphs.values() for file in external_files(path))
        return cls(folder, graphs, folder / TOKENS, tuple(data))

    @property
    def network(self) -> Path:
        """The graph that computes frames: the model, or the encoder."""
        return self.graphs["model" if "model" in self.graphs else "encoder"]

    @property
    def precision(self) -> str:
        """`int8` if a file name says that a graph is quantized, else `fp32`."""
        return "int8" if any(path.name.endswith(INT8) for path in self.graphs.values()) else "fp32"

    def digest(self) -> str:
        """Hexadecimal SHA-256 of all files, in the order of their roles."""
        total = hashlib.sha256()
        for path in (*self.graphs.values(), *self.data, self.tokens):
            with path.open("rb") as file:
                total.update(hashlib.file_digest(file, "sha256").digest())
        return total.hexdigest()


def is_published(path: Path) -> bool:
    """Return whether a path is a published model: an ONNX file or a folder. Checkpoints of this project are files."""
    return path.suffix == ".onnx" or path.is_dir()


def parameters_of(path: Path) -> float:
    """Return about how many parameters a published model has, by the size of the largest file of its folder."""
    files = (path if path.is_dir() else path.parent).iterdir()
    weights = [file for file in files if file.suffix in WEIGHTS and file.is_file()]
    return max((file.stat().st_size / (1 if file.name.endswith(INT8) else 4) for file in weights), default=0.0)


def require_runtime(path: Path) -> None:
    """Check that the packages which read and run graphs are installed. Raises: MissingPackage."""
    for package in ("onnx", "onnxruntime"):
        require(package, "published", path.name)


def find_files(path: Path, precision: str = "auto") -> PublishedFiles:
    """Find the graphs and the tokens of a model, given its folder or one of its files.

    Raises: PublishedModelError if a file is missing or the choice is ambiguous; MissingPackage.
    """
    if not path.exists():
        raise PublishedModelError(
            f"{path} does not exist; a published model is a folder with .onnx graphs and {TOKENS}, or one of its graphs"
        )
    folder = path if path.is_dir() else path.parent
    named = None if path.is_dir() else path
    if path.is_dir() and not any(path.glob("*.onnx")):
        raise PublishedModelError(f"{path} has no .onnx file; a published model is a folder with graphs and {TOKENS}")
    if not (folder / TOKENS).is_file():
        raise PublishedModelError(f"{folder} has no {TOKENS}, which lists the model's symbols")
    require_runtime(path)
    found = [named] if named is not None and _role(named) is None else sorted(folder.glob("*.onnx"))
    by_role: dict[str, Sequence[Path]] = {role: [each for each in found if _role(each) == role] for role in ROLES}
    if named is not None and (role := _role(named)) is not None:
        by_role = {each: _named_alike(named, role, paths) for each, paths in by_role.items()} | {role: [named]}
    if any(by_role.values()):
        if missing := [role for role in ROLES if not by_role[role]]:
            raise PublishedModelError(f"{folder} has an incomplete transducer: no {' and no '.join(missing)} graph")
        return PublishedFiles.of(folder, {role: _one(role, by_role[role], precision) for role in ROLES})
    return PublishedFiles.of(folder, {"model": _one("model", found, precision)})


def _role(path: Path) -> str | None:
    return next((role for role in ROLES if path.name.startswith(role)), None)


def _named_alike(named: Path, role: str, found: Sequence[Path]) -> Sequence[Path]:
    """Return the graphs of a role whose names end like the given one's (`encoder-….onnx`), if there are any."""
    ending = named.name.removeprefix(role).removesuffix(".onnx").removesuffix(".int8")
    alike = [path for path in found if path.name.partition(".")[0].endswith(ending)] if ending else []
    return alike or found


def _one(role: str, found: Sequence[Path], precision: str) -> Path:
    quantized = [path for path in found if path.name.endswith(INT8)]
    floats = [path for path in found if path not in quantized]
    if precision == "int8":
        chosen = quantized or (floats if role == "decoder" else [])  # a decoder is rarely quantized
        if not chosen:
            raise PublishedModelError(f"there is no {role}{INT8} next to {found[0].name}; use --precision auto")
    elif precision in {"auto", "fp32"}:
        chosen = floats or quantized
    else:
        raise PublishedModelError(f"published models have the precision of their files, fp32 or int8, not {precision}")
    if len(chosen) != 1:
        names = ", ".join(path.name for path in chosen)
        raise PublishedModelError(f"{chosen[0].parent} has several graphs ({names}); give the path of one of them")
    return chosen[0]
