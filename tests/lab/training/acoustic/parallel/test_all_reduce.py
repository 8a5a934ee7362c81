"""All-reduce: both algorithms give the tree's bits, the second sends the least bytes, the faster one is chosen."""

import threading
from queue import Queue

import numpy as np
import pytest
import torch

from tutti_asr_lab.training.acoustic.parallel.all_reduce import crossover, doubling, halving

PROCESSES = (2, 4, 8, 16)


class Wires:
    """Exchanges between threads that stand for processes; counts the bytes that each sends."""

    def __init__(self, size):
        self.boxes = {(one, other): Queue() for one in range(size) for other in range(size)}
        self.sent = [0] * size

    def exchange_of(self, rank):
        def exchange(mine, theirs, partner):
            self.sent[rank] += mine.nbytes
            self.boxes[rank, partner].put(mine.clone())
            theirs.copy_(self.boxes[partner, rank].get(timeout=10))

        return exchange


def reduced(algorithm, buffers):
    """Sums of all processes, and the bytes that each sent."""
    size, wires = len(buffers), Wires(len(buffers))
    totals = [buffer.clone() for buffer in buffers]
    work = [(totals[rank], rank, size, wires.exchange_of(rank)) for rank in range(size)]
    threads = [threading.Thread(target=algorithm, args=each) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return totals, wires.sent


def numbers(size, length):
    generator = torch.Generator().manual_seed(size)
    return [torch.randn(length, generator=generator) * 10.0 ** (i % 7 - 3) for i in range(size)]


def tree(arrays):
    """The binary tree over the ranks, in numpy."""
    while len(arrays) > 1:
        arrays = [arrays[i] + arrays[i + 1] for i in range(0, len(arrays), 2)]
    return arrays[0]


@pytest.mark.parametrize("algorithm", [doubling, halving])
@pytest.mark.parametrize("size", PROCESSES)
@pytest.mark.parametrize("length", [501, 16, 64])
def test_every_process_gets_the_bits_of_the_tree(algorithm, size, length):
    buffers = numbers(size, length)
    expected = tree([buffer.numpy() for buffer in buffers])
    totals, _ = reduced(algorithm, buffers)
    assert all(np.array_equal(total.numpy(), expected) for total in totals)


@pytest.mark.parametrize("size", PROCESSES)
def test_halving_sends_the_least_bytes_that_a_sum_needs(size):
    length = 1_024
    buffers = numbers(size, length)
    _, sent = reduced(halving, buffers)
    assert sent == [2 * length * 4 * (size - 1) // size] * size
    _, by_doubling = reduced(doubling, buffers)
    assert by_doubling == [length * 4 * (size.bit_length() - 1)] * size
    if size == 8:
        assert sent[0] / by_doubling[0] == pytest.approx(0.58, abs=0.005)


def test_halving_begins_at_the_size_from_which_it_is_always_faster():
    assert crossover({1: (1.0, 2.0), 4: (2.0, 1.9), 16: (3.0, 2.0)}) == 4
    assert crossover({1: (1.0, 0.9), 4: (2.0, 2.1), 16: (3.0, 2.0)}) == 16
    assert crossover({1: (1.0, 0.9), 4: (2.0, 2.0)}) is None
