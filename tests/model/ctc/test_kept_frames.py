"""Kept frames: a search over them equals one over the model's frames, in any division and after any drop."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.ctc.beam import BeamDecoder
from model.ctc.kept_frames import FrameKeeper, KeptFrames
from model.ctc.search import layout as at
from tests.support.decoding.beam_toys import LETTERS, decoder, seen, speech_like

seeds = st.integers(0, 2**32 - 1)


def keeper_of(search: BeamDecoder) -> FrameKeeper:
    writes = (search.symbols.table[: len(LETTERS), at.ROLE] != at.NEVER).astype(np.uint8)
    writes[0] = 1
    return FrameKeeper(writes, 0, search.limits)


def keep(keeper: FrameKeeper, rows: np.ndarray, step: int) -> KeptFrames:
    kept = KeptFrames()
    for first in range(0, len(rows), step):
        part = np.ascontiguousarray(rows[None, first : first + step])
        keeper.keep(iter([(kept, part.shape[1])]), part)
    return kept


@settings(max_examples=60, deadline=None)
@given(seed=seeds, step=st.integers(1, 50), broken=st.booleans(), share=st.sampled_from((0.5, 0.9, 0.99, 1.0)))
@pytest.mark.parametrize("blank", [False, True])
def test_a_search_over_kept_frames_equals_one_over_the_models_own(
    blank: bool, seed: int, step: int, broken: bool, share: float
) -> None:
    rows = speech_like(seed, 200)
    if broken:
        dice = np.random.default_rng(seed)
        rows[dice.random(rows.shape) < 0.05] = dice.choice([np.nan, np.inf, -np.inf])
        rows[dice.random(len(rows)) < 0.05] = np.nan
    search = BeamDecoder(LETTERS, 0.04, beams=8, kept_share=share, keeps_blank=blank)
    kept = keep(keeper_of(search), rows, step)
    whole, again = search.start(0), search.start(0)
    search.advance([whole], rows[None])
    search.advance([again], kept.log_probs(len(LETTERS), 0))
    assert seen(search, again) == seen(search, whole)
    assert search.take(again) == search.take(whole)


@settings(max_examples=60, deadline=None)
@given(seed=seeds, cut=st.integers(0, 120), then=st.integers(0, 120))
def test_dropping_and_copying_keep_the_later_frames(seed: int, cut: int, then: int) -> None:
    rows = speech_like(seed, 240)
    keeper = keeper_of(decoder())
    kept = keep(keeper, rows, 2)
    whole = kept.log_probs(len(LETTERS), 0)
    kept.drop(cut)
    later = kept.since(cut + then)
    assert (kept.begin, kept.begin + len(kept.counts)) == (cut, 240)
    assert (later.begin, later.begin + len(later.counts)) == (cut + then, 240)
    np.testing.assert_array_equal(kept.log_probs(len(LETTERS), 0), whole[:, cut:])
    np.testing.assert_array_equal(later.log_probs(len(LETTERS), 0), whole[:, cut + then :])
    kept.restart(7)
    assert len(later.counts) == 240 - cut - then, "a copy"
    assert (kept.begin, kept.counts, kept.symbols, kept.values) == (7, b"", b"", b"")


def test_each_row_of_a_batch_goes_to_its_stream_and_only_its_last_frames() -> None:
    rows = np.stack([speech_like(seed, 6) for seed in range(3)])
    keeper, streams = keeper_of(decoder()), [KeptFrames() for _ in range(3)]
    keeper.keep(iter(zip(streams, (6, 0, 2), strict=True)), rows)
    for stream, row, new in zip(streams, rows, (6, 0, 2), strict=True):
        alone = keep(keeper, row[6 - new :], 6) if new else KeptFrames()
        assert (stream.counts, stream.symbols, stream.values) == (alone.counts, alone.symbols, alone.values)


def test_silence_takes_one_byte_per_frame() -> None:
    rows = np.full((1, 100, len(LETTERS)), -20.0, np.float32)
    rows[..., 0] = -1e-6
    kept = keep(keeper_of(decoder()), rows[0], 2)
    assert (len(kept.counts), kept.symbols, kept.values) == (100, b"", b"")
