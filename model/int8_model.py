"""Acoustic model in exact 8-bit arithmetic, for CPUs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from model.config import ModelConfig
from model.facts import ModelFacts
from model.int8.product import sums_of
from model.int8.quantized import LARGEST_INPUT, QuantizedNetwork
from model.int8.slots import Int8Slots, PackedNetwork
from model.machine.device import CPU


class Int8Model:
    """Maps int16 PCM to log-probs in one compiled call; implements `model.facts.AcousticModel` by structure."""

    precision = "int8"
    device = CPU

    def __init__(self, network: QuantizedNetwork, digest: str, *, threads: int = 1) -> None:
        """Pack the network. `digest`: of its file. `threads`: number of threads for large batches."""
        self.network = network
        self.digest = digest
        self.threads = threads
        self._packed = PackedNetwork(network)

    @property
    def config(self) -> ModelConfig:
        """The configuration of its training."""
        return self.network.config

    @property
    def facts(self) -> ModelFacts:
        """What decoders and a server need of it."""
        return ModelFacts.own(self.config, self.digest, self.precision, self.device)

    @property
    def weight_bytes(self) -> int:
        """Size of weights and tables that a step reads, in bytes."""
        return self._packed.weight_bytes

    def slots(self, *, capacity: int, largest: int, tile_rows: int | None = None) -> Int8Slots:
        """Return the model with slots for `capacity` streams; `tile_rows` has no effect, as rows are independent."""
        del tile_rows
        return Int8Slots(self._packed, capacity=capacity, largest=largest, threads=self.threads)

    def recurrent_product(self, rows: int) -> Callable[[], object]:
        """Return the largest product of a step, (rows, H) by (H, 3 H), on noise, for separate timing."""
        noise = np.random.default_rng(1).integers(0, LARGEST_INPUT + 1, (rows, self.config.hidden), dtype=np.uint8)
        return sums_of(self.network.products["gru0.recurrent"], noise)
