"""Serialized and copied decoder states: the stream that continues gives bit-identical results."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.config import MAX_BEAMS
from model.ctc.beam import BeamDecoder
from model.ctc.beam_state import ReleasedState
from model.ctc.bias import NO_BIAS, Bias
from model.ctc.greedy import GreedyDecoder
from model.ctc.interface import Decoder, FoldsStates, SavesStates
from model.ctc.rewind import BeamRewind
from tests.support.decoding.beam_toys import FRAME_S, LETTERS, speech_like, toy_lm
from tests.support.decoding.beam_toys import decoder as beam_decoder
from tests.support.decoding.phone_toys import OUTPUTS, phone_decoder
from tests.support.decoding.piece_toys import piece_decoder, spoken_pieces

TERMS = [("abc", 2.0), ("cab ab", None), ("bb", -1.0)]
STEP = 4  # frames


def snapshot(decoder: Decoder, state: Any) -> tuple[Any, ...]:
    """Return all public fields of a state."""
    seen = (state.frames, state.silence_frames, state.has_text, state.revision)
    return *seen, decoder.words(state), decoder.stable_words(state)


def run(
    decoder: BeamDecoder | GreedyDecoder, rows: np.ndarray, bias: Bias, takes: list[int | None], moves: set[int]
) -> list[Any]:
    """Decode step by step; at some steps take words, at others save, restore, copy and fold the state."""
    state = decoder.start(3, bias)
    results: list[Any] = []
    for number, first in enumerate(range(0, len(rows), STEP)):
        decoder.advance([state], rows[None, first : first + STEP])
        results.append(snapshot(decoder, state))
        if takes and number % 9 == 8:
            results.append(decoder.take(state, takes[number // 9 % len(takes)]))
        for _ in range(number % 3 if takes and number % 7 == 6 else 0):
            results.append(decoder.take(state))
            if number in moves and isinstance(decoder, FoldsStates):
                decoder.fold(state)
        if number % 25 == 24 and bias:
            decoder.set_bias(state, NO_BIAS if number % 50 == 24 else bias)
        if number in moves:
            held = getattr(state, "bias", NO_BIAS)
            saved = decoder.save(state)
            assert decoder.save(state) == saved, "saving changes nothing"
            moved = decoder.load(saved, held)
            assert snapshot(decoder, moved) == snapshot(decoder, state)
            decoder.release(state)
            state = decoder.copy(moved)
            decoder.advance([moved], rows[None, :STEP])  # as a decoded fork: the copy does not change
            decoder.take(moved)
            decoder.release(moved)
            if isinstance(decoder, FoldsStates):
                decoder.fold(state)
    return [*results, decoder.take(state)]


def greedy(_beams: int = 8, *, lm: bool = True) -> GreedyDecoder:
    return GreedyDecoder(LETTERS, FRAME_S)


def phones(beams: int = 8, *, lm: bool = True) -> BeamDecoder:
    return phone_decoder(beams)


KINDS: dict[str, Any] = {
    "letters": (beam_decoder, speech_like, TERMS),
    "pieces": (piece_decoder, spoken_pieces, TERMS),
    "phones": (phones, lambda seed, frames: speech_like(seed, frames, OUTPUTS), [("kay", 2.0), *TERMS]),
    "greedy": (greedy, speech_like, []),
}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    beams=st.sampled_from((1, 2, 8, 16, 64)),
    with_lm=st.booleans(),
    terms=st.booleans(),
    takes=st.lists(st.sampled_from((None, 0, 1, 2)), max_size=3),
    moves=st.sets(st.integers(0, 99), min_size=1, max_size=12),
)
def test_a_restored_decoder_gives_the_same_results_to_the_bit(
    *, kind: str, seed: int, beams: int, with_lm: bool, terms: bool, takes: list[int | None], moves: set[int]
) -> None:
    make, speech, phrases = KINDS[kind]
    decoder, rows = make(beams, lm=with_lm), speech(seed, 100 * STEP)
    bias = Bias.of(phrases) if terms else NO_BIAS
    assert run(decoder, rows, bias, takes, moves) == run(decoder, rows, bias, takes, set())


def test_a_restored_full_tree_is_compacted_at_the_same_frame() -> None:
    """With ambiguous words the tree fills and dead prefixes become alive again, also after a restore."""
    decoder = BeamDecoder(LETTERS, FRAME_S, beams=4, lm=toy_lm())
    rows = speech_like(5, 4_000, len(LETTERS))
    assert run(decoder, rows, NO_BIAS, [None], set(range(1_000))) == run(decoder, rows, NO_BIAS, [None], set())


def test_the_widest_beam_is_restored() -> None:
    decoder = BeamDecoder(LETTERS, FRAME_S, beams=MAX_BEAMS, lm=toy_lm())
    rows = speech_like(6, 300, len(LETTERS))
    assert run(decoder, rows, NO_BIAS, [None], {10, 40, 74}) == run(decoder, rows, NO_BIAS, [None], set())


def saved_by(kind: str) -> tuple[Any, bytes]:
    make, speech, _ = KINDS[kind]
    decoder = make()
    state = decoder.start(0)
    decoder.advance([state], speech(1, 40)[None])
    return decoder, decoder.save(state)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=300, deadline=None)
@given(place=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255), length=st.floats(0, 1))
def test_changed_bytes_are_rejected_or_cause_no_write_out_of_bounds(
    kind: str, place: float, flip: int, length: float
) -> None:
    """Tickets are authenticated, so only a bug can cause this: an error, never a write out of bounds."""
    decoder, saved = saved_by(kind)
    broken = bytearray(saved)
    broken[int(place * len(broken))] ^= flip
    for data in (bytes(broken), saved[: int(length * len(saved))]):
        try:
            state = decoder.load(data)
        except ValueError:
            continue
        decoder.advance([state], KINDS[kind][1](2, 40)[None])
        decoder.words(state)
        decoder.take(state)


@pytest.mark.parametrize("kind", KINDS)
def test_another_version_is_rejected(kind: str) -> None:
    decoder, saved = saved_by(kind)
    fields = msgspec.msgpack.decode(saved)
    with pytest.raises(ValueError, match=r"version|state"):
        decoder.load(msgspec.msgpack.encode([99, *fields[1:]]))


def test_a_released_state_cannot_be_saved() -> None:
    decoder = BeamDecoder(LETTERS, FRAME_S, beams=2)
    state = decoder.start(0)
    decoder.release(state)
    with pytest.raises(ReleasedState):
        decoder.save(state)


def test_a_decoder_that_keeps_frames_saves_no_states() -> None:
    search = BeamDecoder(LETTERS, FRAME_S, beams=2)
    assert isinstance(search, SavesStates)
    assert isinstance(GreedyDecoder(LETTERS, FRAME_S), SavesStates)
    assert not isinstance(BeamRewind(search), SavesStates)


def test_decoders_with_different_results_have_different_digests() -> None:
    decoders: list[Decoder] = [
        GreedyDecoder(LETTERS, FRAME_S),
        GreedyDecoder(LETTERS[:-1], FRAME_S),
        BeamDecoder(LETTERS, FRAME_S, beams=8),
        BeamDecoder(LETTERS, FRAME_S, beams=9),
        BeamDecoder(LETTERS, FRAME_S, beams=8, lm=toy_lm()),
        BeamDecoder(LETTERS, FRAME_S, beams=8, kept_share=0.5),
        BeamDecoder(LETTERS, FRAME_S, beams=8, reach=5.0),
    ]
    assert len({decoder.digest for decoder in decoders}) == len(decoders)
    assert BeamDecoder(LETTERS, FRAME_S, beams=8, lm=toy_lm()).digest == decoders[4].digest


def test_a_folded_state_has_no_memory_until_its_next_use_and_can_be_released() -> None:
    decoder = beam_decoder(8, lm=True)
    used, unused = decoder.start(0, NO_BIAS), decoder.start(0, NO_BIAS)
    for state in (used, unused):
        decoder.fold(state)
        assert (state.address, len(state.block)) == (0, 0)
        assert decoder.take(state) == ()
        decoder.fold(state)
        assert decoder.take(state) == ()
        assert (state.address, len(state.block)) == (0, 0), "nothing was decoded since the last take"
    decoder.advance([used], speech_like(1, STEP)[None])
    assert len(used.block) > 0
    for state in (used, unused):
        decoder.release(state)
        with pytest.raises(ReleasedState):
            state.opened()
