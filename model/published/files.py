"""The files of a published model: which graphs a folder holds, their metadata, and the tokens beside them.

A folder holds one graph (CTC) or an encoder, a decoder and a joiner (transducers), and `tokens.txt`. Of a graph that is
there in floats and as `….int8.onnx`, the precision asked for decides. Nothing here knows what a graph computes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from model.errors import PublishedModelError

TOKENS = "tokens.txt"
ROLES = ("encoder", "decoder", "joiner")
INT8 = ".int8.onnx"


@dataclass(frozen=True, slots=True)
class PublishedFiles:
    """Graphs by role: `model`, or `encoder`, `decoder` and `joiner`."""

    folder: Path
    graphs: Mapping[str, Path]
    tokens: Path

    @property
    def precision(self) -> str:
        """`int8` where a graph is quantised, else `fp32`: what the files' names say."""
        return "int8" if any(path.name.endswith(INT8) for path in self.graphs.values()) else "fp32"

    def digest(self) -> str:
        """Hexadecimal sha256 of all files, in the order of their roles."""
        total = hashlib.sha256()
        for path in (*self.graphs.values(), self.tokens):
            with path.open("rb") as file:
                total.update(hashlib.file_digest(file, "sha256").digest())
        return total.hexdigest()


def is_published(path: Path) -> bool:
    """Whether a path names a published model: an ONNX file or a folder. Our own checkpoints are files."""
    return path.suffix == ".onnx" or path.is_dir()


def find_files(path: Path, precision: str = "auto") -> PublishedFiles:
    """Find the graphs and the tokens of a model, given its folder or one of its files.

    Raises: PublishedModelError if a file is missing, or if it is not clear which one is meant.
    """
    if not path.exists():
        raise PublishedModelError(
            f"{path} does not exist; a published model is a folder with .onnx graphs and {TOKENS}, or one of its graphs"
        )
    folder = path if path.is_dir() else path.parent
    named = None if path.is_dir() else path
    if path.is_dir() and not any(path.glob("*.onnx")):
        raise PublishedModelError(f"{path} holds no .onnx file: a published model is a folder with graphs and {TOKENS}")
    tokens = folder / TOKENS
    if not tokens.is_file():
        raise PublishedModelError(f"{folder} has no {TOKENS}, which lists the model's symbols")
    found = [named] if named is not None and _role(named) is None else sorted(folder.glob("*.onnx"))
    by_role: dict[str, Sequence[Path]] = {role: [each for each in found if _role(each) == role] for role in ROLES}
    if named is not None and (role := _role(named)) is not None:
        by_role = {each: _named_alike(named, role, paths) for each, paths in by_role.items()} | {role: [named]}
    if any(by_role.values()):
        if missing := [role for role in ROLES if not by_role[role]]:
            raise PublishedModelError(f"{folder} has part of a transducer: no {' and no '.join(missing)} graph")
        return PublishedFiles(folder, {role: _one(role, by_role[role], precision) for role in ROLES}, tokens)
    return PublishedFiles(folder, {"model": _one("model", found, precision)}, tokens)


def _role(path: Path) -> str | None:
    return next((role for role in ROLES if path.name.startswith(role)), None)


def _named_alike(named: Path, role: str, found: Sequence[Path]) -> Sequence[Path]:
    """Of a role's graphs those whose names go on as the named one's, `encoder-….onnx`, if there are any."""
    ending = named.name.removeprefix(role).removesuffix(".onnx").removesuffix(".int8")
    alike = [path for path in found if path.name.partition(".")[0].endswith(ending)] if ending else []
    return alike or found


def _one(role: str, found: Sequence[Path], precision: str) -> Path:
    quantised = [path for path in found if path.name.endswith(INT8)]
    floats = [path for path in found if path not in quantised]
    if precision == "int8":
        chosen = quantised or (floats if role == "decoder" else [])  # a decoder is seldom quantised
        if not chosen:
            raise PublishedModelError(f"there is no {role}{INT8} next to {found[0].name}: use --precision auto")
    elif precision in {"auto", "fp32"}:
        chosen = floats or quantised
    else:
        raise PublishedModelError(f"a published model runs in fp32 or int8, as its files are, not in {precision}")
    if len(chosen) != 1:
        names = ", ".join(path.name for path in chosen)
        raise PublishedModelError(f"{chosen[0].parent} has several graphs ({names}): name one of the files")
    return chosen[0]
