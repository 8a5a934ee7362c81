"""Start of a replay from which a fresh resampler gives the same output, checked against soxr."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.audio.pcm import MARGIN_S, USUAL_HZ, Resampler, primed_start

MODEL_RATE = 16_000
STEP = 1_280
USUAL = (8_000, 12_000, 24_000, 32_000, 48_000)


def resampled(audio: np.ndarray, rate: int) -> np.ndarray:
    resampler = Resampler(rate, MODEL_RATE)
    return np.concatenate([resampler.resample(audio), resampler.flush()])


def noise(rate: int, seconds: float) -> np.ndarray:
    wave = np.random.default_rng(rate).normal(0, 6_000, round(rate * seconds))
    return wave.clip(-32_768, 32_767).astype(np.int16)


@pytest.mark.parametrize("rate", USUAL)
def test_the_samples_are_the_same_to_the_bit(rate: int) -> None:
    audio = noise(rate, 12.0)
    whole = resampled(audio, rate)
    for steps in range(1, len(whole) // STEP, 7):
        start, known = primed_start(steps * STEP, rate, MODEL_RATE)
        again = resampled(audio[start:], rate)[known:]
        assert np.array_equal(again, whole[steps * STEP :])


@pytest.mark.parametrize("rate", [11_025, 22_050, 44_100, 16_001])
def test_at_odd_rates_few_samples_differ_and_by_one_unit_only(rate: int) -> None:
    audio = noise(rate, 12.0)
    whole = resampled(audio, rate)
    start, known = primed_start(50 * STEP, rate, MODEL_RATE)
    again = resampled(audio[start:], rate)[known:]
    expected = whole[50 * STEP :]
    assert len(again) == pytest.approx(len(expected), abs=1)
    length = min(len(again), len(expected)) - STEP  # without the end, where the last odd sample is rounded
    difference = np.abs(again[:length].astype(int) - expected[:length])
    assert difference.max() <= 1
    assert difference.mean() < 0.01


@settings(deadline=None, max_examples=30)
@given(rate=st.sampled_from(sorted(USUAL_HZ - {MODEL_RATE})), sizes=st.lists(st.integers(1, 9_000)))
def test_samples_are_complete_no_earlier_than_it_says(rate: int, sizes: list[int]) -> None:
    resampler, complete = Resampler(rate, MODEL_RATE), 0
    for size in sizes:
        least = resampler.samples_until(count := STEP - complete % STEP)
        assert 1 <= least <= rate // 5
        before = len(resampler.resample(np.zeros(min(size, least - 1), np.int16)))
        assert before < count
        complete += before + len(resampler.resample(np.zeros(max(0, size - least + 1), np.int16)))


def test_blocks_of_a_rate_that_only_one_client_has_are_not_measured() -> None:
    """That would take the event loop 20 ms for each of forty thousand rates."""
    assert Resampler(31_337, MODEL_RATE).samples_until(STEP) == 0


@settings(deadline=None)
@given(rate=st.integers(8_000, 48_000), pushed=st.integers(0, 10**9))
def test_the_start_is_block_aligned_and_at_least_the_margin_early(rate: int, pushed: int) -> None:
    start, known = primed_start(pushed, rate, MODEL_RATE)
    assert min(start, known) >= 0
    if rate == MODEL_RATE:
        assert (start, known) == (pushed, 0)
        return
    assert (pushed - known) * rate == start * MODEL_RATE, "the first samples of input and output are aligned"
    early_s = known / MODEL_RATE
    assert early_s >= MARGIN_S - 2e-4 or start == 0
    assert early_s <= MARGIN_S + (0.22 if rate in USUAL else 1.1)
