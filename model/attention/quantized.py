"""A quantized attention network: integer products, scales of queries, keys and values, other tensors in float32.

Queries, keys and values are integers of the step, too: a head's scores are sums of q[d] * k[d] * factor. The factors of
each value's channel are in the weights of the product after attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from model.attention_config import AttentionConfig
from model.int8.quantized import LARGEST_WEIGHT, QuantizedProduct

LARGEST_QUERY, LARGEST_KEY = 127, LARGEST_WEIGHT  # keys and values take the place of weights in products

BLOCK_LINEARS = (
    "feed1.inner", "feed1.outer", "attention_in", "attention_out", "pointwise_in", "pointwise_out",
    "feed2.inner", "feed2.outer",
)  # fmt: skip
NORMS = {"feed1.inner": "feed1.norm", "attention_in": "attention_norm", "pointwise_in": "convolution_norm",
         "feed2.inner": "feed2.norm"}  # fmt: skip
"""Layer norm before each product that has one."""


@dataclass(frozen=True, slots=True)
class QuantizedAttention:
    """Tensors of the compiled step.

    `products`: stem, blocks.0.feed1.inner, … (`BLOCK_LINEARS` of each block), head. `tensors`, float32: features.mean,
    features.scale; of each block its norms' weight and bias, depthwise.weight (D, kernel), depthwise.bias, factors
    (heads,) of the scores.
    """

    config: AttentionConfig
    products: Mapping[str, QuantizedProduct]
    tensors: Mapping[str, NDArray[np.float32]]


def product_shapes(config: AttentionConfig) -> dict[str, tuple[int, int]]:
    """Shape (out, in) of each product, by name."""
    width, inner = config.width, config.feed_forward
    shapes = {"stem": (width, 3 * config.mel_bins)}
    of_block = (
        (inner, width), (width, inner), (3 * width, width), (width, width), (2 * width, width), (width, width),
        (inner, width), (width, inner),
    )  # fmt: skip
    for block in range(config.blocks):
        shapes |= {f"blocks.{block}.{name}": shape for name, shape in zip(BLOCK_LINEARS, of_block, strict=True)}
    return shapes | {"head": (config.outputs, width)}


def tensor_shapes(config: AttentionConfig) -> dict[str, tuple[int, ...]]:
    """Shape of each other tensor, by name."""
    shapes: dict[str, tuple[int, ...]] = {f"features.{name}": (config.mel_bins,) for name in ("mean", "scale")}
    for block in range(config.blocks):
        prefix = f"blocks.{block}."
        for norm in (*NORMS.values(), "norm"):
            shapes |= {f"{prefix}{norm}.{part}": (config.width,) for part in ("weight", "bias")}
        shapes[f"{prefix}depthwise.weight"] = (config.width, config.kernel)
        shapes[f"{prefix}depthwise.bias"] = (config.width,)
        shapes[f"{prefix}factors"] = (config.heads,)
    return shapes
