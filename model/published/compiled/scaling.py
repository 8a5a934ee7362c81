"""Scales of linear layers: those that `tutti quantize` found for the products with the same weights."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from model.published.compiled.linears import Linear
from model.published.quantization.products import Scale, products_of
from model.published.rewriting.onnx_graph import OnnxGraph


def scales_by_weight(source: OnnxGraph, scales: Mapping[str, Scale]) -> dict[str, Scale]:
    """Return the scales of a graph's products, by digest of their weights."""
    return {_digest(each.weight): scales[each.name] for each in products_of(source) if each.name in scales}


def with_scales(linears: Sequence[Linear], scales: Mapping[str, Scale]) -> list[Linear]:
    """Return the layers with the scales of their weights; a layer without one is computed in floats."""
    return [replace(each, scale=scales.get(_digest(each.weight))) for each in linears]


def _digest(weight: NDArray[np.float32]) -> str:
    return hashlib.sha256(np.ascontiguousarray(weight).tobytes()).hexdigest()
