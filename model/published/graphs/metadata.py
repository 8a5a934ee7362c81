"""A published graph in ONNX Runtime: its metadata as numbers, and its inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from model.errors import PublishedModelError
from model.published.graphs.onnx_graph import OnnxGraph

THREADS = 1  # of a step: the engine's thread; a pool would take cores from the event loop and from other engines


@dataclass(frozen=True, slots=True)
class GraphInput:
    """Input declared by a graph; `shape` has a number, a name or None for each axis."""

    name: str
    type: str
    shape: tuple[int | str | None, ...]


@dataclass(frozen=True, slots=True)
class Graph:
    """A graph: its session of ONNX Runtime, None if a compiled step runs instead, its path and its metadata."""

    path: Path
    session: Any
    metadata: Mapping[str, str]
    inputs: tuple[GraphInput, ...]
    outputs: tuple[str, ...]

    @classmethod
    def load(cls, path: Path, device: str = "cpu") -> Graph:
        """Load a graph for one thread, on the CPU or a CUDA device. Raises: PublishedModelError."""
        return cls.of(path, str(path), device=device)

    @classmethod
    def of(cls, path: Path, content: OnnxGraph | str, outputs: Iterable[str] = (), *, device: str = "cpu") -> Graph:
        """Load a graph from the path of its file, or one that was read from the file `path`.

        The session of the latter uses the graph's constants where they are, and also returns the values `outputs`.
        Raises: PublishedModelError.
        """
        import onnxruntime  # which most models do not need

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = THREADS
        options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 4
        wanted = ["CUDAExecutionProvider"] if device.startswith("cuda") else []
        if wanted and wanted[0] not in onnxruntime.get_available_providers():
            raise PublishedModelError(f"--device {device} needs the package onnxruntime-gpu instead of onnxruntime")
        try:
            if isinstance(content, str):
                session = onnxruntime.InferenceSession(content, options, providers=[*wanted, "CPUExecutionProvider"])
            else:
                session = content.session(options, outputs)
        except Exception as error:
            reason = str(error).strip().splitlines()[0]
            raise PublishedModelError(f"ONNX Runtime cannot read {path}: {reason}") from error
        return cls(
            path,
            session,
            dict(session.get_modelmeta().custom_metadata_map),
            tuple(GraphInput(each.name, each.type, tuple(each.shape)) for each in session.get_inputs()),
            tuple(output.name for output in session.get_outputs()),
        )

    def number(self, key: str, *, least: int = 1) -> int:
        """Return a metadata value as an integer. Raises: PublishedModelError if missing, not a number, or too small."""
        return self.numbers(key, least=least, count=1)[0]

    def numbers(self, key: str, *, least: int = 1, count: int | None = None) -> tuple[int, ...]:
        """Return a metadata value as comma-separated integers. Raises: PublishedModelError."""
        text = self.metadata.get(key)
        if text is None or not text.strip():
            raise PublishedModelError(f"{self.path.name} has no {key!r} in its metadata")
        try:
            found = tuple(int(part) for part in text.split(","))
        except ValueError as error:
            raise PublishedModelError(f"{self.path.name}: {key!r} in the metadata is {text!r}, not a number") from error
        if any(value < least for value in found) or (count is not None and len(found) != count):
            raise PublishedModelError(f"{self.path.name}: {key!r} in the metadata is {text!r}, out of range")
        return found

    def try_out(self, occasion: str, *inputs: NDArray[Any]) -> list[NDArray[Any]]:
        """Run once, inputs by position; `occasion` describes them in the error. Raises: PublishedModelError."""
        feeds = {declared.name: array for declared, array in zip(self.inputs, inputs, strict=True)}
        try:
            outputs: list[NDArray[Any]] = self.session.run(None, feeds)
        except Exception as error:
            reason = str(error).strip().splitlines()[0]
            raise PublishedModelError(f"{self.path.name} fails on {occasion}: {reason}") from error
        return outputs

    def check_inputs(self, expected: Sequence[tuple[str, tuple[int | None, ...]]]) -> None:
        """Check type and shape of the inputs, by position; None is an axis of any size.

        Raises: PublishedModelError naming the first input that differs.
        """
        if len(self.inputs) != len(expected):
            raise PublishedModelError(
                f"{self.path.name} has {len(self.inputs)} inputs, by its metadata it should have {len(expected)}"
            )
        for declared, (kind, shape) in zip(self.inputs, expected, strict=True):
            sizes = declared.shape
            fits = len(sizes) == len(shape) and all(
                wanted is None or not isinstance(size, int) or size == wanted
                for size, wanted in zip(sizes, shape, strict=True)
            )
            if declared.type != kind or not fits:
                raise PublishedModelError(
                    f"{self.path.name}: input {declared.name!r} is {declared.type} {list(sizes)}, "
                    f"by its metadata it should be {kind} {list(shape)}"
                )

    def need_outputs(self, count: int) -> None:
        """Check the number of outputs. Raises: PublishedModelError."""
        if len(self.outputs) != count:
            raise PublishedModelError(
                f"{self.path.name} has {len(self.outputs)} outputs, by its metadata it should have {count}"
            )
