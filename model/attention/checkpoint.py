"""Tensors of a quantized attention network in a checkpoint, see `model.checkpoint`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as encoded

from model import checkpoint
from model.attention.model import AttentionModel
from model.attention.quantized import QuantizedAttention, product_shapes, tensor_shapes
from model.attention_config import AttentionConfig


def save_attention(network: QuantizedAttention, path: Path) -> None:
    """Write integers, scales, the float32 tensors and the configuration."""
    arrays: dict[str, NDArray[Any]] = dict(network.tensors)
    for name, product in network.products.items():
        arrays |= checkpoint.product_arrays(name, product)
    checkpoint.write(
        path, network.config, encoded({name: np.asarray(array, order="C") for name, array in arrays.items()})
    )


def load_attention(path: Path, *, threads: int = 1) -> AttentionModel:
    """Read a checkpoint; `threads`: of large batches. Raises: CheckpointError."""
    config, blob = checkpoint.read(path)
    assert isinstance(config, AttentionConfig)
    try:
        return AttentionModel(quantized_attention_of(config, blob), checkpoint.digest_of(blob, config), threads=threads)
    except Exception as error:  # safetensors raises an untyped error of its own
        raise checkpoint.does_not_fit(path, error) from error


def quantized_attention_of(config: AttentionConfig, blob: bytes) -> QuantizedAttention:
    """Return the network in a file's bytes. Raises: KeyError or ValueError for tensors that do not fit `config`."""
    left = load_arrays(blob)
    products = {name: checkpoint.take_product(left, name, shape) for name, shape in product_shapes(config).items()}
    expected = tensor_shapes(config)
    checkpoint.must_have_shapes(left, expected)
    return QuantizedAttention(config, products, {name: array.astype(np.float32) for name, array in left.items()})
