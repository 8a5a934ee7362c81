"""Chunks: several steps of a stream in one call of the model, where they wait anyway and delay no due step. Pure.

A batch is chosen as if there were none. Then each of its streams runs k steps in place of one, with the same k for all,
the largest that the model offers for which

1. every stream has k steps that may run now: k due ones where the first is due, k waiting ones where it fills;
2. all steps together are no more rows than the largest batch;
3. the chunk lasts no longer than a batch of filling steps alone may, (1 + `ALONE_SHARE`) one-row batches, while a live
   stream that is not in it could have a due step before it ends;
4. no due step of the batch comes too late that would come in time alone, and no batch that is held for its deadline.

So rows go before steps: a chunk never takes the place of another stream. Service times of chunks are learned by their
length and their number of streams, apart from those of single steps, which all other decisions are made with.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from batching.policy.filling import ALONE_SHARE
from batching.policy.service_times import ServiceTimes


class Chunks:
    """The lengths that a model offers, how long each takes, and which of them a batch may have."""

    def __init__(self, lengths: Sequence[int], service: ServiceTimes, *, max_rows: int) -> None:
        """Take the lengths in steps, ascending, the first 1, and the times of single steps. Raises: ValueError."""
        if list(lengths) != sorted(set(lengths)) or lengths[0] != 1:
            raise ValueError(f"lengths of chunks must begin with 1 and ascend, not {tuple(lengths)}")
        self._lengths = tuple(lengths)
        self._single = service
        self._service = {steps: ServiceTimes() for steps in lengths[1:]}
        self._max_rows = max_rows
        self.most_streams = max_rows // lengths[1] if len(lengths) > 1 else 0
        """Streams of the largest batch that has the rows for any chunk."""

    def most(self, streams: int) -> int:
        """The longest chunk that a batch of so many streams has the rows for."""
        room = self._max_rows // streams
        return max(steps for steps in self._lengths if steps <= room or steps == 1)

    def learn(self, streams: int, steps: int, seconds: float) -> None:
        """Add the time of one chunk of two steps or more."""
        self._service[steps].learn(streams, seconds)

    def estimate(self, streams: int, steps: int) -> float:
        """Expected seconds of a chunk; before any of this length was measured, those of as many single steps."""
        known = steps > 1 and self._service[steps].known
        return self._service[steps].estimate(streams) if known else steps * self._single.estimate(streams)

    def at_worst(self, streams: int, steps: int) -> float:
        """Seconds that a chunk rarely exceeds."""
        known = steps > 1 and self._service[steps].known
        return self._service[steps].at_worst(streams) if known else steps * self._single.at_worst(streams)

    def longest(
        self,
        streams: int,
        most: int,
        *,
        others: bool,
        free_s: float = math.inf,
        deadlines_in_s: Collection[float] = (),
    ) -> int:
        """Return the longest chunk of `most` steps or fewer that keeps rules 3 and 4.

        `others`: a live stream outside of the batch could have a due step. A held batch starts in `free_s`. The due
        steps of the batch have their deadlines in `deadlines_in_s`.
        """
        limit_s = (1 + ALONE_SHARE) * self._single.estimate(1) if others else math.inf
        single_s = self._single.estimate(streams)
        for steps in reversed(self._lengths):
            if steps == 1:
                break
            if steps <= most and self.estimate(streams, steps) <= limit_s:
                worst_s = self.at_worst(streams, steps)
                if worst_s <= free_s and not any(single_s <= in_s < worst_s for in_s in deadlines_in_s):
                    return steps
        return 1
