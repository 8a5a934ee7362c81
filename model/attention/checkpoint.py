"""Attention network in exact 8-bit arithmetic, and its tensors in a checkpoint, see `model.checkpoint`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as encoded

from model import checkpoint
from model.attention.network import PackedAttention, PackedWeights, read_segment
from model.attention.quantized import QuantizedAttention, product_shapes, tensor_shapes
from model.attention_config import AttentionConfig
from model.facts import ModelFacts
from model.int8.product import sums_of
from model.int8.quantized import LARGEST_INPUT
from model.int8.slots import Int8Slots
from model.machine.device import CPU


class AttentionModel:
    """Maps int16 PCM to log-probs in one compiled call; implements `model.facts.AcousticModel` by structure."""

    precision = "int8"
    device = CPU

    def __init__(self, network: QuantizedAttention, digest: str, *, threads: int = 1) -> None:
        """Pack the network. `digest`: of its file. `threads`: number of threads for large batches."""
        self.digest, self.threads = digest, threads
        self._largest_product = network.products["blocks.0.feed1.inner"]
        self._weights = PackedWeights(network)
        self._packed = PackedAttention(self._weights, network.config.form)

    @property
    def config(self) -> AttentionConfig:
        """The configuration of its training, with the form of its steps."""
        return self._packed.config

    @property
    def facts(self) -> ModelFacts:
        """What decoders and a server need of it."""
        return ModelFacts.own(self.config, self.digest, self.precision, self.device)

    @property
    def weight_bytes(self) -> int:
        """Size of weights and tables that a step reads, in bytes."""
        return self._weights.nbytes

    def slots(self, *, capacity: int, largest: int, tile_rows: int | None = None) -> Int8Slots:
        """Return the model with slots for `capacity` streams; `tile_rows` has no effect, as rows are independent."""
        del tile_rows
        return Int8Slots(self._packed, capacity=capacity, largest=largest, threads=self.threads)

    def read(self, segment: NDArray[np.int16]) -> NDArray[np.float32]:
        """Return log-probs (T, outputs) of a whole segment (S,), with all of it as context; callable on any thread.

        As those of a stream, they lag by `delay_frames`: the first ones lie before the segment.
        """
        rows = read_segment(self._weights, segment)
        before = np.zeros((self.config.delay_frames, self.config.outputs), np.float32)
        return np.concatenate([before, rows])[: len(rows)]

    def recurrent_product(self, rows: int) -> Callable[[], object]:
        """Return the largest product of a step, of all frames of `rows` windows, on noise, for separate timing."""
        frames, width = rows * self.config.form.window, self.config.width
        noise = np.random.default_rng(1).integers(0, LARGEST_INPUT + 1, (frames, width), dtype=np.uint8)
        return sums_of(self._largest_product, noise)


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
