"""Answers of a network are bit-identical, however often its engine is killed."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from batching.events import BatchDone
from batching.wire.engine_server import EngineServer
from model.torch_network.slots import TorchSlots
from tests.support.networks.slot_models import TinyGru
from tests.support.servers.fakes import WAIT_S
from tests.support.streams.wire_bench import BOUNDS, Recovering, wait_until


@pytest.fixture
def spares() -> Iterator[Any]:
    """Started engines with the same weights, one after the other."""
    network = TinyGru()
    with ExitStack() as stack:

        def start() -> EngineServer:
            engine = EngineServer(TorchSlots(network, capacity=16, largest=16, tile_rows=8), **BOUNDS)
            stack.callback(engine.stop, WAIT_S)
            engine.start()
            return engine

        yield start


def test_answers_of_a_network_are_bit_equal_whenever_its_engine_is_killed(spares: Any) -> None:
    """Two front ends with 6 streams each; the engine ends twice in the middle, at an unknown moment."""
    inputs = np.random.default_rng(5).standard_normal((12, 60, 24), dtype=np.float32)  # (streams, steps, features)
    expected = run_network(spares(), [], inputs)
    found = run_network(spares(), [spares(), spares()], inputs)
    for stream in range(12):
        np.testing.assert_array_equal(found[stream], expected[stream])


def run_network(engine: EngineServer, others: list[EngineServer], inputs: np.ndarray) -> list[np.ndarray]:
    fronts = [Recovering(engine, every_steps=7) for _ in range(2)]
    streams = [[front.engine.open() for _ in range(6)] for front in fronts]
    rows: list[list[np.ndarray]] = [[] for _ in range(12)]
    taken = [0, 0]

    def take() -> int:
        for n, front in enumerate(fronts):
            for event in front.events[taken[n] :]:
                if isinstance(event, BatchDone):
                    for stream, tag, output in zip(event.streams, event.tags, event.outputs, strict=True):
                        assert tag == len(rows[6 * n + streams[n].index(stream)])
                        rows[6 * n + streams[n].index(stream)].append(output)
            taken[n] = len(front.events)
        return sum(map(len, rows))

    def pump(until: int) -> None:
        def advance(_end: Any) -> None:
            for front in fronts:
                front.take()

        ends = [front.end for front in fronts if front.end is not None]
        wait_until(lambda: take() >= until or any(front.end is None for front in fronts), *ends, take=advance)

    random_ = random.Random(3)
    for n in range(inputs.shape[1]):
        for member in range(12):
            fronts[member // 6].engine.push(streams[member // 6][member % 6], inputs[member, n], tag=n)
        if others and n in (20, 41):
            engine, old = others.pop(), engine
            killer = threading.Thread(target=old.stop, args=(WAIT_S,))
            killer.start()
            pump(take() + random_.randrange(12))
            killer.join()
            for front in fronts:
                front.lose()
                front.connect(engine)
        elif n % 3 == 0:
            pump(take() + 1)
    pump(12 * inputs.shape[1])
    return [np.stack(found) for found in rows]
