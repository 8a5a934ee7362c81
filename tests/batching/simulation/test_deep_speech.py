"""The inferred Deep Speech 2 device reproduces the paper's published figures."""

import math

import pytest

from batching.batcher import Policy
from batching.simulation.calibration import (
    DEEP_SPEECH_BATCH_S,
    DEEP_SPEECH_MESSAGE_S,
    DEEP_SPEECH_MS,
    DEEP_SPEECH_STREAMS,
    deep_speech_2,
)
from batching.simulation.planning import Serving, run_load

SEEDS = range(8)
DEVICE = deep_speech_2()


def runs(streams, policy=Policy.EAGER):
    return [run_load(DEVICE, Serving(policy, stream_s=math.inf), streams, seconds=12.0, seed=seed) for seed in SEEDS]


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def test_ten_streams_have_the_published_median():
    assert mean(o.latency_ms.p50 for o in runs(10)) == pytest.approx(DEEP_SPEECH_MS["median"], rel=0.03)


def test_ten_streams_have_the_published_batch_sizes():
    outcomes = runs(10)
    small = mean(sum(n for rows, n in o.batches.items() if rows <= 4) / sum(o.batches.values()) for o in outcomes)
    assert mean(o.batch_share(2) for o in outcomes) > 0.5
    assert small > 0.9


def test_p98_is_two_batches_and_below_the_published_one():
    p98 = mean(o.latency_ms.p98 for o in runs(10))
    assert p98 == pytest.approx(2e3 * DEEP_SPEECH_BATCH_S, rel=0.03)
    assert p98 < DEEP_SPEECH_MS["p98"]


def test_batches_grow_with_the_streams_and_latency_hardly():
    outcomes = [runs(streams) for streams in DEEP_SPEECH_STREAMS]
    sizes = [mean(o.mean_batch for o in group) for group in outcomes]
    medians = [mean(o.latency_ms.p50 for o in group) for group in outcomes]
    assert sizes == sorted(sizes)
    assert sizes[-1] > 2.5 * sizes[0]
    assert max(medians) < 1.1 * min(medians)


def test_one_at_a_time_the_device_carries_three_streams_and_not_ten():
    fits = int(DEEP_SPEECH_MESSAGE_S / DEEP_SPEECH_BATCH_S) - 1
    assert all(o.stable for o in runs(fits, Policy.SINGLE))
    assert not any(o.stable for o in runs(10, Policy.SINGLE))
