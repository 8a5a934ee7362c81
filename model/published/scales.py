"""The file of scales that `tutti quantize` writes into a published model's folder: `tutti-int8.json`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from model.errors import PublishedModelError
from model.published.onnx_graph import OnnxGraph
from model.published.products import Scale, products_of, quantize_products

FILE = "tutti-int8.json"
VERSION = 2


@dataclass(frozen=True, slots=True)
class Scales:
    """Scales of products by name, for the rewritten graph with the digest `model`; `report`: what the tool measured.

    `files`: digest of the published files. `weights`: digest of each product's weights, by name.
    """

    model: str
    files: str
    products: Mapping[str, Scale]
    weights: Mapping[str, str]
    left_out: Sequence[str] = ()
    report: Mapping[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Digest of the model and all scales."""
        parts = [self.model, *(f"{name} {scale.step!r} {scale.zero}" for name, scale in self.products.items())]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    @property
    def by_weights(self) -> Mapping[str, Scale]:
        """Scales by digest of the weights: names belong to one rewriting of the graph."""
        return {self.weights[name]: scale for name, scale in self.products.items()}

    @classmethod
    def read(cls, folder: Path) -> Scales | None:
        """Read the file of a model's folder; None if there is none. Raises: PublishedModelError if it is damaged."""
        path = folder / FILE
        if not path.exists():
            return None
        try:
            found = json.loads(path.read_text())
            version = found["version"]
            if version != VERSION:
                raise PublishedModelError(
                    f"{path} has version {version}, this program reads {VERSION}; "
                    "run `tutti quantize` again, or use --precision fp32"
                )
            listed = found["products"].items()
            products = {name: Scale(float(step), int(zero)) for name, (step, zero, _) in listed}
            weights = {name: str(digest) for name, (_, _, digest) in listed}
            left_out, report = tuple(found["left_out"]), found["report"]
            return cls(str(found["model"]), str(found["files"]), products, weights, left_out, report)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise PublishedModelError(
                f"{path} cannot be read ({error}); run `tutti quantize` again, or use --precision fp32"
            ) from error

    def write(self, folder: Path) -> Path:
        """Write the file of a model's folder. Raises: OSError."""
        document = {
            "version": VERSION,
            "model": self.model,
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

    def applied(self, graph: OnnxGraph | None, digest: str) -> OnnxGraph:
        """Return the rewritten graph with these products. Raises: PublishedModelError for another graph, or none."""
        if (
            graph is None
            or digest != self.model
            or not self.products.keys() <= {each.name for each in products_of(graph)}
        ):
            raise PublishedModelError(
                f"{FILE} was written for other files, other rewrites or another version of tutti; "
                "run `tutti quantize` again, or use --precision fp32"
            )
        return quantize_products(graph, self.products)
