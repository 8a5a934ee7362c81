"""Compute threads of a graph: divided batches give the same bits, and are left whole where they would not."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from structlog.testing import capture_logs

from model.acoustic import load_model
from model.published import stepping
from model.published.published_model import LARGEST_BATCH, PublishedModel
from server.operations.dependent_rows import warn_of_dependent_rows
from tests.model.published.test_least_rows import write_sum
from tests.support.networks.probes import make_probe
from tests.support.networks.published import probe_of

ROWS = (1, 2, 3, 5, 8)
VARIANTS = ["zipformer2-ctc", "nemo-ctc", "t-one-ctc", "zipformer2-transducer", "nemo-transducer"]
VARIANTS += ["nemo-buffered-transducer"]


def bits_of(model, *, tile_rows=None):
    """Return the bits of all rows' outputs and states after steps of noise in batches of `ROWS`."""
    dice = np.random.default_rng(0)
    largest = max(ROWS)
    slots = model.slots(capacity=largest + 1, largest=largest, tile_rows=tile_rows)
    found = []
    for rows in (*ROWS, *ROWS[::-1]):
        members = dice.permutation(largest + 1)[:rows].tolist()
        slots.inputs[:rows] = dice.integers(-9_000, 9_000, (rows, model.config.step_samples), dtype=np.int16)
        found.append(np.array(slots.run(members)).tobytes())
    return found, [slots.export(slot) for slot in range(largest + 1)]


@pytest.fixture
def threads_used(monkeypatch):
    """Return a set that is filled with the name of each thread that runs a graph, and its number of rows."""
    used = set()
    run = stepping.BoundGraph.run

    def recorded(self, slots, windows, prompts, results):
        used.add((threading.current_thread().name, len(slots)))
        run(self, slots, windows, prompts, results)

    monkeypatch.setattr(stepping.BoundGraph, "run", recorded)
    return used


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_divided_batch_gives_the_bits_of_one_thread(variant, threads_used):
    folder = probe_of(variant).folder
    models = [load_model(folder, device="cpu", threads=count) for count in (1, 2, 3, 4)]
    assert [model.threads for model in models] == [1, 2, 3, 4]
    whole, two, three, four = models
    threads_used.clear()
    expected = bits_of(whole)
    undivided = max(rows for _, rows in threads_used)
    threads_used.clear()
    assert bits_of(two) == expected
    assert {name.split("_")[0] for name, _ in threads_used} == {"MainThread", "graph"}
    assert max(rows for _, rows in threads_used) == -(-undivided // 2)
    assert bits_of(three) == bits_of(four) == expected


@pytest.mark.parametrize("variant", ["zipformer2-ctc", "nemo-transducer"])
def test_rows_that_run_alone_are_divided_too(variant, threads_used):
    folder = probe_of(variant).folder
    whole, two = (load_model(folder, device="cpu", threads=count) for count in (1, 2))
    expected = bits_of(whole, tile_rows=1)
    threads_used.clear()
    assert bits_of(two, tile_rows=1) == expected
    assert {name.split("_")[0] for name, _ in threads_used} == {"MainThread", "graph"}


def test_each_part_has_the_least_number_of_rows(tmp_path, threads_used):
    write_sum(tmp_path, by="ReduceSum")
    two = PublishedModel.load(tmp_path, device="cpu", threads=2)
    assert (two.threads, two.least_rows) == (2, 2)
    threads_used.clear()
    found = bits_of(two)
    assert ("MainThread", 3) in threads_used, "three rows were divided"
    assert min(rows for name, rows in threads_used if name != "MainThread") == 3, "eight and five rows are divided"
    assert found == bits_of(PublishedModel.load(tmp_path, device="cpu"))


def test_a_batch_of_dependent_rows_is_not_divided_and_the_server_says_so(tmp_path):
    folder = make_probe("zipformer2-ctc", tmp_path, quantized=True).folder
    model = load_model(folder, device="cpu", threads=2)
    assert (model.threads, model.undivided) == (1, "a row's bits depend on the number of rows")
    assert bits_of(model) == bits_of(load_model(folder, device="cpu", threads=1))
    with capture_logs() as entries:
        warn_of_dependent_rows(model, reproducible=True)
    assert [(each["event"], each["reason"]) for each in entries] == [
        ("batches are not divided among threads", model.undivided)
    ]


def test_each_thread_adds_to_the_largest_batch():
    folder = probe_of("nemo-ctc").folder
    one, three = (load_model(folder, device="cpu", threads=count) for count in (1, 3))
    sizes = {"capacity": 128, "largest": 128}
    assert (len(one.slots(**sizes).inputs), len(three.slots(**sizes).inputs)) == (LARGEST_BATCH, 3 * LARGEST_BATCH)
    assert len(three.slots(capacity=128, largest=40).inputs) == 40


def test_a_failed_part_fails_the_batch_after_the_other_parts_ended(monkeypatch):
    model = load_model(probe_of("zipformer2-ctc").folder, device="cpu", threads=2)
    slots = model.slots(capacity=4, largest=4)
    for _ in range(model.config.first_steps):
        slots.run(range(4))
    run, ended = stepping.BoundGraph.run, []
    entered = threading.Event()

    def failing(self, members, windows, prompts, results):
        if threading.current_thread().name.startswith("graph"):
            entered.wait(10)
            run(self, members, windows, prompts, results)
            ended.append(len(members))
            return
        entered.set()
        raise RuntimeError("device lost")

    monkeypatch.setattr(stepping.BoundGraph, "run", failing)
    with pytest.raises(RuntimeError, match="device lost"):
        slots.run(range(4))
    assert ended == [2]
