"""Dynamic int8 files of a published model, made from its graphs in floats as the scripts of released models make them.

`python -m tutti_asr_lab.benchmarks.peers.dynamic_int8 SOURCE TARGET` runs in a process of its own, since a graph is
several times in memory meanwhile. Int8 files that the source has are copied.

Source: icefall's scripts that export streaming zipformers; sherpa-onnx's scripts for NeMo.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer
from onnxruntime.quantization import QuantType, quantize_dynamic

from model.published.files import INT8, TOKENS, find_files
from model.published.published_model import PublishedModel

OPERATIONS = {"model": ["MatMul"], "encoder": ["MatMul"], "decoder": ["MatMul", "Gather"], "joiner": ["MatMul"]}
"""Operations that icefall's scripts quantize, by role, with signed weights."""


def write(source: Path, target: Path) -> None:
    """Write int8 graphs and the tokens of the model in `source` to `target`. Raises: PublishedModelError."""
    files, kind = find_files(source), PublishedModel.load(source, device="cpu").contract.kind
    target.mkdir(parents=True, exist_ok=True)
    shutil.copy(files.tokens, target / TOKENS)
    for role, path in files.graphs.items():
        written = path if path.name.endswith(INT8) else path.with_name(path.name.removesuffix(".onnx") + INT8)
        if written.exists():
            shutil.copy(written, target)
        elif not kind.startswith("nemo"):
            quantize_dynamic(
                path, target / written.name, op_types_to_quantize=OPERATIONS[role], weight_type=QuantType.QInt8
            )
        elif role in {"model", "encoder"}:
            quantize_dynamic(path, target / written.name, weight_type=QuantType.QUInt8)
        else:  # sherpa-onnx's scripts leave NeMo's prediction network and joiner in floats
            shutil.copy(path, target)


def main(source: Annotated[Path, typer.Argument()], target: Annotated[Path, typer.Argument()]) -> None:
    """Write a folder with the int8 graphs of a published model."""
    write(source, target)


if __name__ == "__main__":
    typer.run(main)
