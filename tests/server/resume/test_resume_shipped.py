"""The shipped model over two servers gives the same words, times and confidences as on one: greedy and beam search, and
accurate finals.
"""

from __future__ import annotations

import random
from contextlib import ExitStack

import numpy as np
import pytest

from model.acoustic import load_model
from model.decoder import decoder_of, second_passes_of
from model.recordings import read_pcm
from server.resume.tickets import new_key
from tests.support.audio.speech import samples
from tests.support.clients.resume_client import ResumingClient
from tests.support.servers.live_server import LiveServer
from tests.support.servers.server_process import COMPILE_S, REAL, ServerProcess


def speech() -> np.ndarray:
    """Return half a minute of several voices with a second between them."""
    parts: list[np.ndarray] = []
    for utterance in samples()[:6]:
        parts += [read_pcm(utterance.audio), np.zeros(16_000, np.int16)]
    return np.concatenate(parts)[: 30 * 16_000]


@pytest.mark.parametrize("decoder", ["greedy", "beam", "context", "accurate"])
def test_real_speech_resumes_word_for_word(decoder: str) -> None:
    model, key = load_model(), new_key()
    chosen = decoder_of(model.facts, decoder="greedy" if decoder == "greedy" else "beam")
    passes = second_passes_of(model.facts, chosen) if decoder != "greedy" else {}
    segment_s = 10.0 if decoder in passes else 0.0
    if decoder in passes:
        chosen = passes[decoder]
        chosen.warm_up()
    audio, dice = speech()[:, None], random.Random(decoder)
    query = {"interim_results": "true", "smart_format": "true"}
    if decoder == "beam":
        query["keyterm"] = "garden gate"
    with ExitStack() as stack:
        pair = [stack.enter_context(LiveServer(model, chosen, resume_keys=(key,))) for _ in range(2)]
        whole = ResumingClient(pair[:1], audio, 16_000, segment_s=segment_s, **query).run(())
        losses = sorted(dice.uniform(0.5, len(audio) / 16_000) for _ in range(8))
        moved = ResumingClient(pair, audio, 16_000, segment_s=segment_s, **query).run(losses)
    assert moved.results == whole.results
    assert sum(len(final["channel"]["alternatives"][0]["words"]) for final in whole.finals) > 10


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_accurate_finals_are_the_same_when_other_front_ends_take_over() -> None:
    audio, query = speech()[:, None], {"interim_results": "true", "finals": "accurate"}
    with ServerProcess(program=("-c", REAL), start_s=COMPILE_S, front_ends=2, finals="accurate") as server:
        whole = ResumingClient([server], audio, 16_000, segment_s=10.0, **query).run(())
        moved = ResumingClient([server], audio, 16_000, segment_s=10.0, **query).run([3.1, 7.7, 12.2, 16.0, 21.3, 26.9])
    assert moved.results == whole.results
    assert len(whole.finals) > 5
