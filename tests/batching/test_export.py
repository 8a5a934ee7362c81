"""Export and restore of states: order of events, and streams that move between engines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from batching.errors import UnknownStream, WrongState
from batching.events import StreamClosed
from tests.support.servers.fakes import FailingModel, GatedModel
from tests.support.servers.recognizers.spelling import GatedSpellingModel, silence
from tests.support.streams.engine_bench import Start, step


def test_pending_exports_of_a_failed_or_closed_stream_are_dropped(start_engine: Start) -> None:
    model = GatedModel()
    bench = start_engine(model)
    failing, closing = bench.engine.open(), bench.engine.open()
    bench.engine.push(failing, step(1))
    model.wait_inside()
    bench.engine.push(failing, step(FailingModel.POISON))
    bench.engine.export(failing)
    bench.engine.push(closing, step(1))
    bench.engine.export(closing)
    bench.engine.close(closing)
    model.go_on(2)
    bench.done()
    assert bench.event() == StreamClosed(closing)
    assert bench.failed().stream == failing
    bench.engine.export(failing)
    bench.engine.restore(failing, bytes(bench.engine.state_bytes))
    bench.engine.close(failing)
    assert bench.event() == StreamClosed(failing)
    bench.engine.export(closing)
    gone = bench.failed()
    assert isinstance(gone.error, UnknownStream)


def test_restore_refuses_a_state_of_another_size_and_a_stream_with_waiting_steps(start_engine: Start) -> None:
    model = GatedModel()
    bench = start_engine(model)
    stream = bench.engine.open()
    with pytest.raises(WrongState):
        bench.engine.restore(stream, b"")
    bench.engine.push(stream, step(1))
    model.wait_inside()
    bench.engine.push(stream, step(1))
    bench.engine.restore(stream, bytes(bench.engine.state_bytes))  # fails: it would change the waiting step
    model.go_on(2)
    bench.done()
    failed = bench.failed()
    assert isinstance(failed.error, WrongState)


def test_the_queue_metric_is_zero_after_the_last_stream_closed_with_waiting_steps(
    live_server: Callable[..., Any],
) -> None:
    """The last batch reports waiting steps; no later batch reports that they were dropped."""
    model = GatedSpellingModel()
    server = live_server(model=model)
    with server.listen() as client:
        model.shut()
        client.send(silence(1.0))
        model.wait_inside()
        client.vanish()
    server.wait_until(lambda: not len(server.replica.sessions))
    model.open()
    server.wait_idle()
    assert server.metric("tutti_batch_queue_depth") == 0
