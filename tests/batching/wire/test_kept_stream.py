"""What a front end keeps of a stream: what is sent, and which rows of a batch are new."""

from __future__ import annotations

import numpy as np

from batching.events import BatchDone
from batching.wire.kept_stream import KeptStream, chosen_rows


def test_rows_that_are_kept_of_a_chunked_batch_are_one_event_a_step() -> None:
    batch = BatchDone(
        streams=(1, 1, 2, 2),
        tags=("a", "b", "c", "d"),
        outputs=np.arange(4),
        queue_wait_s=(0.0, 0.1, 0.2, 0.3),
        started_s=5.0,
        step_s=0.5,
        queued=0,
        live_wait_s=(0.2, 0.3),
        steps=2,
    )
    first, second = chosen_rows(batch, [False, True, True, True], [False, False, True, True])
    assert (first.streams, first.tags, first.outputs.tolist(), first.live_wait_s) == ((2,), ("c",), [2], (0.2,))
    assert (second.streams, second.tags, second.outputs.tolist()) == ((1, 2), ("b", "d"), [1, 3])
    assert (second.live_wait_s, second.queue_wait_s) == ((0.3,), (0.1, 0.3))
    assert [(event.steps, event.rows_in_all, event.leads) for event in (first, second)] == [(1, 4, True), (1, 4, False)]
    assert chosen_rows(batch, [False] * 4, [False, False, True, True]) == []


def test_a_kept_stream_knows_what_is_sent() -> None:
    kept = KeptStream(0.1, background=False, every_steps=2)
    assert kept.caught_up
    kept.restore(b"state")
    assert not kept.all_sent
    kept.reopen()
    assert (kept.caught_up, kept.state) == (True, b"state")
