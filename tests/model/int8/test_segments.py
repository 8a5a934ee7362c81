"""Whole segments in one call: bit-identical to a stream."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from model.int8_model import Int8Model
from tests.support.networks.quantized_networks import PHONES, random_quantized, random_slots


def noise(steps: int, seed: int = 5) -> np.ndarray:
    """Return PCM of some steps, (S,) int16, of varying loudness."""
    random = np.random.default_rng(seed)
    loudness = np.repeat(10.0 ** random.uniform(1, 4, steps), 1_280)
    return np.clip(random.normal(0, loudness), -32_768, 32_767).astype(np.int16)


@pytest.mark.parametrize("steps", [1, 2, 37, 150])
def test_a_segment_is_bit_identical_to_a_stream(steps: int) -> None:
    pcm, slots = noise(steps), random_slots(phones=PHONES)
    slots.reset(0)
    stream = []
    for step in pcm.reshape(-1, 1_280):
        slots.inputs[0] = step
        stream.append(slots.run([0])[0])
    assert np.array_equal(Int8Model(random_quantized(phones=PHONES), "").read(pcm), np.concatenate(stream))


def test_segments_do_not_depend_on_concurrent_or_earlier_ones() -> None:
    model = Int8Model(random_quantized(), "")
    segments = [noise(steps, seed=steps) for steps in (3, 90, 12, 40)]
    alone = [model.read(segment) for segment in segments]
    with ThreadPoolExecutor(4) as pool:
        concurrent = list(pool.map(model.read, segments * 5))
    assert all(np.array_equal(found, alone[number % 4]) for number, found in enumerate(concurrent))
    assert model.read(noise(0)).shape == (0, model.config.outputs)
