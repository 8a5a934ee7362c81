"""Where the audio of a stream must be sent again from, so that the resampler gives the very samples that it would have.

The resampler's own state cannot be had. It works in blocks; one that starts anew at a block's border, and some time
before what is wanted, gives the same numbers, because they are made of the same audio in the same blocks.
"""

from __future__ import annotations

from math import gcd

MODEL_RATE_HZ = 16_000
MARGIN_S = 0.12
"""Of audio before the first sample that is wanted: longer than the filter at any rate. Source: 104 ms at 8 kHz, less at
all others, measured with soxr 1.1; tests/test_resume_priming.py holds it to that."""
BLOCKS = {8_000: 830, 12_000: 2_490, 24_000: 2_202, 32_000: 1_660, 48_000: 4_404}
"""Samples of a block by rate. Source: measured as above. At other rates the samples are the same but for fewer than one
in 200, which differs by one unit of 32,768."""


def primed_start(pushed: int, rate: int, model_rate: int) -> tuple[int, int]:
    """Return from which sample on a fresh resampler must be fed, and how many samples of its output are known already.

    `pushed` model-rate samples are known; both count from where the resampler was last fresh.
    """
    if rate == model_rate:
        return pushed, 0
    shared = gcd(rate, model_rate)
    unit, units_out = rate // shared, model_rate // shared  # so many samples become so many
    block = BLOCKS.get(rate, unit) if model_rate == MODEL_RATE_HZ else unit
    latest = pushed * unit // units_out - round(MARGIN_S * rate)
    start = max(0, latest // block * block)
    return start, pushed - start * units_out // unit
