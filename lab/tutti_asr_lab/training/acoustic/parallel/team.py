"""Communication between the processes of a run: sums, parts of a result, and objects; bit-exact, and timed.

Sums continue the tree of `tutti_asr_lab.training.acoustic.parallel.all_reduce`: in round k, processes whose ranks
differ in bit k exchange buffers and both add them. The library's own reductions order their additions by the number of
processes (gloo's all_reduce gives other bits for four than for one). GPU buffers pass through host memory: the order of
NCCL's sums depends on the topology, and this way there is one path to test.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import torch
from torch import Tensor, distributed

from model.errors import TrainingError
from tutti_asr_lab.training.acoustic.parallel.all_reduce import MEASURED, SIZES, crossover, doubling, halving
from tutti_asr_lab.training.acoustic.parallel.placement import Location, order_by_host


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
    """Rank of this process among the processes of a run, whose number is a power of two.

    `members` are the ranks in torch's process group by rank here, which differ after `placed`.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # rank on its machine
    spent: Spent = field(default_factory=Spent)
    members: tuple[int, ...] = ()  # empty: the same ranks
    locations: tuple[Location, ...] = ()  # of all processes, by rank, after `placed`
    halving_from: int | None = None  # bytes from which sums halve the buffer; None: never

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
        halved = self.halving_from is not None and total.nbytes >= self.halving_from and total.numel() >= self.size
        began, waited_s, sent_s = time.perf_counter(), self.spent.wait_s, self.spent.exchange_s
        (halving if halved else doubling)(total, self.rank, self.size, self._exchange)
        waited_s = self.spent.wait_s - waited_s
        self.spent.exchange_s = sent_s + time.perf_counter() - began - waited_s  # with the additions
        return total.to(own.device)

    def placed(self) -> Team:
        """Renumber the processes so that those of one machine have consecutive ranks; the first stays the first.

        Near ranks exchange the largest buffers. Raises: TrainingError if another process has ended.
        """
        if self.size == 1:
            return self
        locations = self.objects(Location.here(self.local_rank))
        order = order_by_host([location.host for location in locations])
        found = tuple(locations[rank] for rank in order)
        return replace(self, rank=order.index(self.rank), members=tuple(order), locations=found)

    def measured(self, largest: int) -> Team:
        """Compare both algorithms at sizes up to `largest` bytes and choose the size from which halving is used.

        All processes choose the same: each counts with the slowest process's times. Raises: TrainingError if another
        process has ended.
        """
        if self.size == 1:
            return self
        sizes = [*(size for size in SIZES if size < largest), largest]
        by_process = self.objects(self.time_of(sizes, MEASURED))
        slowest = {size: _slowest(times[size] for times in by_process) for size in sizes}
        return replace(self, halving_from=crossover(slowest))

    def time_of(self, sizes: Sequence[int], times: int) -> dict[int, tuple[float, float]]:
        """Median seconds of sums by doubling and by halving, for sizes in bytes; both take turns.

        Raises: TrainingError if another process has ended.
        """
        found: dict[int, tuple[list[float], list[float]]] = {size: ([], []) for size in sizes}
        for _ in range(times):
            for size, seconds in found.items():
                for algorithm, taken in zip((doubling, halving), seconds, strict=True):
                    buffer = torch.zeros(size // 4)
                    began = time.perf_counter()
                    algorithm(buffer, self.rank, self.size, self._exchange)
                    taken.append(time.perf_counter() - began)
        self.spent.take()
        return {size: (median(one), median(other)) for size, (one, other) in found.items()}

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
        return [found[self._member(rank)] for rank in range(self.size)]

    def broadcast(self, content: bytes | None, source: int) -> bytes:
        """Content given by the process of rank `source`. Raises: TrainingError if another process has ended."""
        if self.size == 1:
            assert content is not None
            return content
        given = [content if self.rank == source else None]
        try:
            distributed.broadcast_object_list(given, src=self._member(source))
        except RuntimeError as error:
            raise TrainingError(f"another process of the run has ended: {error}") from error
        (found,) = given
        assert found is not None
        return found

    def _member(self, rank: int) -> int:
        """Rank in torch's process group."""
        return self.members[rank] if self.members else rank

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
            sending = distributed.isend(mine, self._member(partner))
            distributed.recv(theirs, self._member(partner))
            if sending is not None:
                sending.wait()
        except RuntimeError as error:
            raise TrainingError(f"process {partner} of the run has ended: {error}") from error


def _slowest(times: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Of both algorithms, the slowest process's time."""
    one, other = zip(*times, strict=True)
    return max(one), max(other)
