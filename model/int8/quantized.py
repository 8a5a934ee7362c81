"""A quantized network: integer weights, static scales of activations, other tensors in float32.

A product has unsigned 8-bit inputs with one static scale and zero point for the whole tensor. Its
sums are exact integers, so their order, the number of rows and the instruction set do not matter. Weights are within
±63: pairs of products of 255 and 63 fit into 16 bits, beyond which the AVX2 instruction `vpmaddubsw` saturates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from model.config import ModelConfig

LARGEST_WEIGHT = 63
LARGEST_INPUT = 255


@dataclass(frozen=True, slots=True)
class QuantizedProduct:
    """Product y[o] = sum_i (q[i] - input_zero) * weight[o, i] * scale[o] * input_scale + bias[o].

    q[i] = clip(rint(x[i] / input_scale) + input_zero, 0, 255); weight (out, in) int8 within ±63, scale and bias (out,)
    float32.
    """

    weight: NDArray[np.int8]
    scale: NDArray[np.float32]
    bias: NDArray[np.float32]
    input_scale: float
    input_zero: int


@dataclass(frozen=True, slots=True)
class QuantizedNetwork:
    """Tensors of the compiled step.

    `products`: conv0, conv1, gru0.input, gru0.recurrent, …, dense, head. `tensors`: float32, by their names in the
    network's state: features.mean, features.scale, norms.0.weight, norms.0.bias, …, norm.weight, norm.bias,
    lookahead.weight.
    """

    config: ModelConfig
    products: Mapping[str, QuantizedProduct]
    tensors: Mapping[str, NDArray[np.float32]]
