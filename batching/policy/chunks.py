"""Chunks: several waiting steps of a stream in one model call, if that delays no due step. Pure.

A batch is chosen from single steps. Then each of its streams runs k steps instead of one, with the same k for all: the
largest k that the model supports and for which

1. every stream has k steps that may run now: k due ones if its first is due, k waiting ones if its first is background;
2. all steps together have no more rows than the largest batch;
3. the chunk lasts no longer than a batch of background work alone may, (1 + `WITHOUT_LIVE_SHARE`) one-row batches, and
   `HANDOVER_S`, while a live stream outside of the batch could have a due step before it ends;
4. no due step of the batch misses a deadline that it would keep as a single step, and no batch that waits for its
   deadline is delayed.

More streams take precedence over longer chunks: a chunk never displaces another stream.

The exception is a burst, such as the silence of a flush, in a batch with streams that have one due step each. As single
steps, its k steps would take k batches. If it has the earliest deadline of all, it runs as a chunk before the others,
as long as that takes no longer than their batch and makes none of them late. Bursts are rare, so the others wait once
for what would lengthen their next k batches anyway.

Service times of chunks are kept by length and number of streams, separate from those of single steps, on which all
other decisions are based.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from batching.policy.background import WITHOUT_LIVE_SHARE
from batching.policy.service_times import ServiceTimes

HANDOVER_S = 0.0002
"""Seconds from the end of a batch to the start of its decoding. A chunk saves as much, so with a small model it may
last that much longer than one step. Source: median of `tutti loadtest --ruler ttfs --explain`, two cores."""


class Chunks:
    """Chunk lengths that a model supports, their service times, and the choice of a length for a batch."""

    def __init__(self, lengths: Sequence[int], service: ServiceTimes, *, max_rows: int) -> None:
        """`lengths` in steps, ascending, the first 1; `service`: times of single steps. Raises: ValueError."""
        if list(lengths) != sorted(set(lengths)) or lengths[0] != 1:
            raise ValueError(f"chunk lengths must start with 1 and ascend, not {tuple(lengths)}")
        self._lengths = tuple(lengths)
        self._single = service
        self._service = {steps: ServiceTimes() for steps in lengths[1:]}
        self._max_rows = max_rows
        self.most_streams = max_rows // lengths[1] if len(lengths) > 1 else 0
        """Most streams of a batch with room for a chunk."""

    def most(self, streams: int) -> int:
        """Longest chunk for which a batch of this many streams has enough rows."""
        room = self._max_rows // streams
        return max(steps for steps in self._lengths if steps <= room or steps == 1)

    def measured(self, streams: int, steps: int, seconds: float) -> None:
        """Set the time of chunks of two or more steps."""
        self._service[steps].measured(streams, seconds)

    def estimate(self, streams: int, steps: int) -> float:
        """Expected seconds of a chunk; before one of this length was measured, those of as many single steps."""
        known = steps > 1 and self._service[steps].known
        return self._service[steps].estimate(streams) if known else steps * self._single.estimate(streams)

    def at_worst(self, streams: int, steps: int) -> float:
        """Seconds that a chunk rarely exceeds."""
        known = steps > 1 and self._service[steps].known
        return self._service[steps].at_worst(streams) if known else steps * self._single.at_worst(streams)

    def longest(
        self, streams: int, most: int, *, others: bool, free_s: float = math.inf, deadlines_in_s: Collection[float] = ()
    ) -> int:
        """Return the longest chunk of at most `most` steps that keeps rules 3 and 4.

        `others`: whether a live stream outside of the batch could have a due step. `free_s`: seconds until the start of
        a waiting batch. `deadlines_in_s`: seconds until the deadlines of the batch's due steps.
        """
        limit_s = (1 + WITHOUT_LIVE_SHARE) * self._single.estimate(1) + HANDOVER_S if others else math.inf
        single_s = self._single.estimate(streams)
        for steps in reversed(self._lengths):
            if steps == 1:
                break
            if steps <= most and self.estimate(streams, steps) <= limit_s:
                worst_s = self.at_worst(streams, steps)
                if worst_s <= free_s and not any(single_s <= in_s < worst_s for in_s in deadlines_in_s):
                    return steps
        return 1

    def burst(self, due: Sequence[int], deadlines_in_s: Sequence[float]) -> tuple[Sequence[int], int]:
        """Return the rows of a batch whose streams run a chunk before it, and the steps of each; () if none do.

        The arguments have one entry per row (one row per stream), in deadline order: `due`, the number of steps that
        may run as one chunk now, and the seconds until the deadline of the first of them.
        """
        single_s = self._single.estimate(len(due))
        for steps in reversed(self._lengths[1:]):
            if steps > due[0]:
                continue
            able = [row for row, count in enumerate(due) if count >= steps][: self._max_rows // steps]
            while able:
                done_s = self.at_worst(len(able), steps) + single_s
                others = (in_s for row, in_s in enumerate(deadlines_in_s) if row not in able)
                late = any(single_s <= in_s < done_s for in_s in others)
                if self.estimate(len(able), steps) <= single_s and not late:
                    return able, steps
                able = able[: len(able) // 2]
        return (), 1
