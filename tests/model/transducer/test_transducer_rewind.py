"""Taken text of a transducer, searched again for key terms in the kept frames."""

from __future__ import annotations

import numpy as np
import pytest

from model.ctc.bias import Bias
from model.ctc.rewind import KEPT_S
from model.decoder import decoder_of, rewind_of
from model.transducer.rewind import KeptEncodings, TransducerRewind
from tests.model.transducer.test_transducer_decoder import CONFUSED, TEXT
from tests.support.decoding.toy_transducer import FRAME_S, spoken, toy_decoder
from tests.support.networks.published import model_of

TERM = Bias.of([("kelu", 1.0)])


def decoded(made: TransducerRewind, frames: np.ndarray, step: int = 8, *, skip: int = 0):
    state = made.start(skip)
    for at in range(0, frames.shape[1], step):
        made.advance([state], frames[:, at : at + step])
    return state


def texts(words) -> str:
    return " ".join(word.text for word in words)


def test_a_term_replaces_the_word_that_was_recognized_and_no_other_word_changes() -> None:
    made = TransducerRewind(toy_decoder())
    state = decoded(made, spoken(f"{TEXT} {TEXT}", confused=CONFUSED))
    taken = made.take(state)
    assert texts(taken) == "bado keru miro nasi bado keru miro nasi"
    found = made.rewind(state, 0.0, TERM)
    assert found is not None
    assert texts(found.words) == f"{TEXT} {TEXT}"
    assert (found.words[0], found.words[3], found.words[6]) == (taken[0], taken[3], taken[6])
    later = made.rewind(state, taken[4].start_s, TERM)
    assert later is not None
    assert (texts(later.words), texts(later.before)) == (TEXT, "bado keru miro nasi")


def test_frames_are_kept_for_a_while_and_skipped_ones_never() -> None:
    made, frames = TransducerRewind(toy_decoder()), spoken(TEXT, confused=CONFUSED)
    frames = np.concatenate([frames[:, :3], *[frames] * 60], axis=1)
    state = decoded(made, frames, skip=3)
    made.take(state)
    most = round(KEPT_S / FRAME_S)
    assert most <= sum(map(len, state.kept.parts)) < most + 8
    found = made.rewind(state, 0.0, TERM)
    assert found is not None
    assert found.start_s >= state.frames * FRAME_S - KEPT_S - 0.5
    assert texts(found.words).count("kelu") == len(found.words) // 4


def test_a_copy_keeps_its_own_frames_and_a_part_can_begin_anywhere() -> None:
    made = TransducerRewind(toy_decoder())
    state = decoded(made, spoken(TEXT))
    twin = made.copy(state)
    made.advance([state], spoken(TEXT))
    assert sum(map(len, twin.kept.parts)) == spoken(TEXT).shape[1]
    kept = KeptEncodings(10, type(state.kept.parts)([np.arange(8.0)[:, None], np.arange(4.0)[:, None]]))
    assert np.concatenate([*kept.since(13).parts])[:, 0].tolist() == [3, 4, 5, 6, 7, 0, 1, 2, 3]
    assert (kept.begin, len(kept.parts[0])) == (10, 8)


@pytest.mark.parametrize("kind", ["zipformer2-transducer", "nemo-transducer"])
def test_a_search_without_terms_finds_the_words_that_were_taken(kind: str) -> None:
    """From the beginning, so that the context is that of the stream."""
    made = rewind_of(decoder_of(model_of(kind).facts))
    assert isinstance(made, TransducerRewind)
    frames = np.random.default_rng(4).standard_normal((1, 40, model_of(kind).transducer.width)).astype(np.float32)
    state = decoded(made, frames)
    taken = made.take(state)
    assert len(taken) > 2
    assert made.decode_again(state, 0, (), Bias(())) == taken
