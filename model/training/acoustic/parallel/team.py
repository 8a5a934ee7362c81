"""Communication between the processes of a run: sums, parts of a result, and objects; bit-exact, and timed.

Sums continue the tree of `model.training.acoustic.parallel.tree` by recursive doubling: in round k, processes whose
ranks differ in bit k exchange their buffers and both add them. The library's own reductions order their additions by
the number of processes (gloo's all_reduce gives other bits for four than for one). GPU buffers pass through host
memory: the order of NCCL's sums depends on the topology, and this way there is one path to test.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, distributed

from model.errors import TrainingError


@dataclass(slots=True)
class Spent:
    """Seconds since the last `take`: waiting for slower processes, and exchanging and adding buffers."""

    wait_s: float = 0.0
    exchange_s: float = 0.0

    def take(self) -> tuple[float, float]:
        """Return both and reset them."""
        found = self.wait_s, self.exchange_s
        self.wait_s = self.exchange_s = 0.0
        return found


@dataclass(frozen=True, slots=True)
class Team:
    """Rank of this process among the processes of a run, whose number is a power of two."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # rank on its machine
    spent: Spent = field(default_factory=Spent)

    @property
    def leads(self) -> bool:
        """Whether this is the process that saves and reports."""
        return self.rank == 0

    def sum(self, own: Tensor) -> Tensor:
        """Sum of the buffers of all processes, the same bits in each of them; `own` (N,) is overwritten.

        Raises: TrainingError if another process has ended.
        """
        if self.size == 1:
            return own
        total = own.cpu()
        other = torch.empty_like(total)
        step = 1
        while step < self.size:
            self._exchange(total, other, self.rank ^ step)
            began = time.perf_counter()
            total.add_(other)
            self.spent.exchange_s += time.perf_counter() - began
            step *= 2
        return total.to(own.device)

    def gather(self, joined: Tensor, bounds: Sequence[int]) -> None:
        """Collect the parts of all processes: process r has computed `joined[bounds[r] : bounds[r + 1]]`.

        Raises: TrainingError if another process has ended.
        """
        if self.size == 1:
            return
        on_host = joined.cpu()
        step = 1
        while step < self.size:
            first = self.rank // step * step  # the first of the processes whose parts this one already has
            theirs = first ^ step
            mine, wanted = (on_host[bounds[r] : bounds[r + step]] for r in (first, theirs))
            self._exchange(mine, wanted, self.rank ^ step)
            step *= 2
        if on_host is not joined:
            joined.copy_(on_host)

    def objects(self, own: Any) -> list[Any]:
        """Objects of all processes, in the order of their ranks. Raises: TrainingError if another process has ended."""
        if self.size == 1:
            return [own]
        found: list[Any] = [None] * self.size
        try:
            distributed.all_gather_object(found, own)
        except RuntimeError as error:
            raise TrainingError(f"another process of the run has ended: {error}") from error
        return found

    def broadcast(self, content: bytes | None, source: int) -> bytes:
        """Content given by the process of rank `source`. Raises: TrainingError if another process has ended."""
        if self.size == 1:
            assert content is not None
            return content
        given = [content if self.rank == source else None]
        try:
            distributed.broadcast_object_list(given, src=source)
        except RuntimeError as error:
            raise TrainingError(f"another process of the run has ended: {error}") from error
        (found,) = given
        assert found is not None
        return found

    def _exchange(self, mine: Tensor, theirs: Tensor, partner: int) -> None:
        """Exchange buffers, after exchanging one byte, whose duration is the waiting time."""
        began = time.perf_counter()
        self._swap(torch.zeros(1, dtype=torch.uint8), torch.zeros(1, dtype=torch.uint8), partner)
        met = time.perf_counter()
        self._swap(mine.view(torch.uint8), theirs.view(torch.uint8), partner)
        self.spent.wait_s += met - began
        self.spent.exchange_s += time.perf_counter() - met

    def _swap(self, mine: Tensor, theirs: Tensor, partner: int) -> None:
        try:
            sending = distributed.isend(mine, partner)
            distributed.recv(theirs, partner)
            if sending is not None:
                sending.wait()
        except RuntimeError as error:
            raise TrainingError(f"process {partner} of the run has ended: {error}") from error
