"""The shipped network for the peers of this folder; the only file here that imports `model`.

There are two ways to run a step: the PyTorch module as written, or `recorded`, tutti's own step. The state of a stream
can be packed into one row of bytes, the simplest form to pass between processes of a framework.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loadtest.benchmarks.peers.stream import Card
from loadtest.errors import BadSettings
from model.errors import PrecisionError
from model.machine.runtime import set_up_torch
from model.torch_model import TorchModel

State = dict[str, Tensor]
Row = NDArray[np.uint8]


class PeerNetwork:
    """The shipped weights, in the precision that tutti chooses for the machine."""

    def __init__(self, *, threads: int, recorded: bool, precision: str = "auto") -> None:
        """Load the weights. Raises: BadSettings for a precision that this machine does not support."""
        set_up_torch(threads)
        try:
            self._model = TorchModel.load(precision=precision)
        except PrecisionError as error:
            raise BadSettings(str(error)) from error
        self._recorded = recorded
        config = self._model.config
        self.card = Card(
            step_bytes=2 * config.step_samples,
            frames_per_step=config.frames_per_step,
            delay_frames=config.delay_frames,
            flush_steps=config.flush_steps,
            vocabulary=config.vocabulary,
        )
        self._fields = self._layout()

    @property
    def row_bytes(self) -> int:
        """Bytes of one stream's packed state."""
        return sum(size for _, _, _, size in self._fields)

    def fresh_state(self) -> State:
        """Return the state of a new stream."""
        return self._model.network.fresh_state(1)

    def fresh_row(self) -> Row:
        """Return the packed state of a new stream, (row_bytes,)."""
        return np.zeros(self.row_bytes, np.uint8)

    @torch.inference_mode()
    def step(self, pcm: Tensor, state: State) -> tuple[list[list[int]], State]:
        """Run int16 PCM (B, step_samples); returns the best letter of each frame (B, T) and the next state."""
        run = self._model.step if self._recorded else self._model.network
        log_probs, after = run(pcm, state)
        letters = log_probs[:, :, : len(self.card.vocabulary)]
        return cast(list[list[int]], letters.argmax(dim=2).tolist()), after

    def step_one(self, pcm: bytes, state: State) -> tuple[list[int], State]:
        """Run a step of one stream."""
        symbols, after = self.step(_samples([pcm]), state)
        return symbols[0], after

    def step_rows(self, pcm: Sequence[bytes], rows: Sequence[Row]) -> tuple[list[list[int]], NDArray[np.uint8]]:
        """Run a batch of steps with packed states; returns symbols (B, T) and next rows (B, row_bytes)."""
        packed = torch.from_numpy(np.stack(rows))  # (B, row_bytes)
        state, at = {}, 0
        for name, shape, dtype, size in self._fields:
            state[name] = packed[:, at : at + size].contiguous().view(dtype).view(len(rows), *shape)
            at += size
        symbols, after = self.step(_samples(pcm), state)
        columns = [after[name].contiguous().view(len(rows), -1).view(torch.uint8) for name, *_ in self._fields]
        return symbols, torch.cat(columns, dim=1).numpy()

    def warm_up(self, sizes: Sequence[int]) -> None:
        """Run a step of each batch size, since the libraries prepare each shape on first use."""
        for size in sizes:
            self.step_rows([bytes(self.card.step_bytes)] * size, [self.fresh_row()] * size)

    def _layout(self) -> list[tuple[str, tuple[int, ...], torch.dtype, int]]:
        """Return name, shape, dtype and bytes of each tensor in a packed row."""
        found = []
        for name, tensor in self.fresh_state().items():
            found.append((name, tuple(tensor.shape[1:]), tensor.dtype, tensor[0].numel() * tensor.element_size()))
        return found


def _samples(pcm: Sequence[bytes]) -> Tensor:
    """Return the audio of a batch, (B, step_samples) int16."""
    return torch.from_numpy(np.frombuffer(b"".join(pcm), np.int16).reshape(len(pcm), -1).copy())
