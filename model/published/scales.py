"""Products in 8-bit integers: static scales of inputs, and the file of them that `tutti quantize` writes.

The sums are exact integers, so that a row's outputs do not depend on the batch. Weights are within ±63: pairs of
products with inputs of 255 then fit into 16 bits, beyond which the AVX2 instruction `vpmaddubsw` saturates.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.errors import PublishedModelError
from model.int8.quantized import LARGEST_INPUT, LARGEST_WEIGHT

FILE = "tutti-int8.json"
VERSION = 2  # of the file
STEPS = 2  # version of the compiled steps: part of the digest of a model that has one

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Scale:
    """Step and zero point of 8-bit inputs: x = step * (byte - zero)."""

    step: float
    zero: int

    @classmethod
    def of(cls, low: float, high: float) -> Scale:
        """Return the scale for inputs between two values; it contains 0 exactly."""
        low, high = min(low, 0.0), max(high, 0.0)
        step = max((high - low) / LARGEST_INPUT, 1e-12)
        return cls(step, round(-low / step))

    def bytes_of(self, x: Floats) -> NDArray[np.uint8]:
        """Round to bytes, halves to even as ONNX does."""
        rounded = np.rint(x / np.float32(self.step)) + self.zero
        return np.asarray(np.clip(rounded, 0, LARGEST_INPUT), np.uint8)


def digest_of_weights(weight: Floats) -> str:
    """Return the digest of weights (K, O), by which a scale finds its product."""
    return hashlib.sha256(np.ascontiguousarray(weight, np.float32).tobytes()).hexdigest()


def quantized_weights(weight: Floats) -> tuple[NDArray[np.int8], Floats]:
    """Return the weights (K, O) as integers within ±63, and the step of each column (O,)."""
    steps = np.maximum(np.abs(weight).max(axis=0), 1e-12).astype(np.float32) / np.float32(LARGEST_WEIGHT)
    return np.rint(weight / steps).astype(np.int8), steps


@dataclass(frozen=True, slots=True)
class Scales:
    """Scales of products, and the digests of their weights, by name; `report`: what the tool measured.

    `files`: digest of the published files.
    """

    files: str
    products: Mapping[str, Scale]
    weights: Mapping[str, str]
    left_out: Sequence[str] = ()
    report: Mapping[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Digest of a model with these scales. It identifies tickets; without products, it is that of the floats."""
        listed = sorted(f"{weights} {scale.step!r} {scale.zero}" for weights, scale in self.by_weights.items())
        return hashlib.sha256("\n".join((self.files, str(STEPS), *listed)).encode()).hexdigest()

    @property
    def by_weights(self) -> Mapping[str, Scale]:
        """Scales by digest of the weights: the names are only shown."""
        return {self.weights[name]: scale for name, scale in self.products.items()}

    @classmethod
    def read(cls, folder: Path) -> Scales | None:
        """Read the file of a model's folder; None if there is none. Raises: PublishedModelError if it is damaged."""
        path = folder / FILE
        if not path.exists():
            return None
        try:
            document = json.loads(path.read_text())
            version = document["version"]
            if version != VERSION:
                raise PublishedModelError(
                    f"{path} has version {version}, this program reads {VERSION}; "
                    "run `tutti quantize` again, or use --precision fp32"
                )
            listed = document["products"].items()
            products = {name: Scale(float(step), int(zero)) for name, (step, zero, _) in listed}
            weights = {name: str(digest) for name, (_, _, digest) in listed}
            left_out, report = tuple(document["left_out"]), document["report"]
            return cls(str(document["files"]), products, weights, left_out, report)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise PublishedModelError(
                f"{path} cannot be read ({error}); run `tutti quantize` again, or use --precision fp32"
            ) from error

    def write(self, folder: Path) -> Path:
        """Write the file of a model's folder. Raises: OSError."""
        document = {
            "version": VERSION,
            "files": self.files,
            "products": {name: [scale.step, scale.zero, self.weights[name]] for name, scale in self.products.items()},
            "left_out": list(self.left_out),
            "report": dict(self.report),
        }
        path = folder / FILE
        part = path.with_suffix(".part")
        part.write_text(json.dumps(document, indent=1))
        part.replace(path)
        return path

    def check(self, files: str) -> None:
        """Check the digest of a model's files. Raises: PublishedModelError."""
        if files != self.files:
            raise PublishedModelError(
                f"{FILE} was written for other files; run `tutti quantize` again, or use --precision fp32"
            )
