"""Measurement of the engine's Python: batches have the reported rows, and clock readings ascend."""

from __future__ import annotations

import numpy as np

from batching.events import BatchDone
from loadtest.benchmarks.engine_python import SAMPLES, DrivenEngine, measure


def test_a_batch_has_exactly_the_pushed_steps() -> None:
    engine = DrivenEngine(8)
    for first in range(0, 64, 8):
        streams = engine.streams[first : first + 8]
        readings_s = engine.times(streams, np.zeros(SAMPLES, np.int16))
        assert list(readings_s) == sorted(readings_s)
        (done,) = engine.last
        assert isinstance(done, BatchDone)
        assert done.streams == tuple(streams)
        assert done.queued == 0
        assert done.live_wait_s == done.queue_wait_s, "the step is on time, not early"


def test_each_part_has_a_positive_time() -> None:
    assert (measure(128) > 0).all()
