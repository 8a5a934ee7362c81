"""The audio that a channel keeps for a second pass: what was decoded, from where the segment began."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from model.ctc.greedy import GreedyDecoder, GreedyState
from model.ctc.interface import FrameAudio, SecondPass
from model.ctc.two_pass import CONTEXT_S, KEPT_S
from server.recognition.segments.open_segment import SegmentAudio
from tests.support.servers.recognizers.spelling import CONFIG, silence, spell
from tests.support.streams.session_bench import SessionBench

STEP = CONFIG.step_samples
FRAMES = CONFIG.frames_per_step
BEFORE = math.ceil((CONTEXT_S / CONFIG.frame_s + CONFIG.delay_frames) / FRAMES)
MOST = math.ceil(((CONTEXT_S + KEPT_S) / CONFIG.frame_s + CONFIG.delay_frames) / FRAMES)


class Rereading(GreedyDecoder):
    """Keeps the audio of its second passes, and the frames decoded by then."""

    def __init__(self, *, reads_audio: bool = True) -> None:
        super().__init__(CONFIG.vocabulary, CONFIG.frame_s)
        self.reads_audio = reads_audio
        self.received: list[tuple[FrameAudio | None, int]] = []

    def second_pass(self, state: GreedyState, audio: FrameAudio | None) -> SecondPass | None:
        words = self.words(state)
        self.received.append((audio, state.frames))
        return (lambda: words) if words else None


ACTIONS = ["add", "answer"] * 8 + ["taken", "taken", "restart"]  # segments are longer than what is kept before them


@given(st.lists(st.sampled_from(ACTIONS), min_size=60, max_size=2_500))
def test_it_keeps_what_a_second_reading_needs_and_not_more(actions: list[str]) -> None:
    audio, steps, sent, answered, begin, segment = SegmentAudio(CONFIG), [], 0, 0, 0, 0
    for action in actions:
        if action == "add":
            steps.append(np.full(STEP, sent, np.int16))
            audio.add(steps[-1])
            sent += 1
        elif action == "answer" and answered < sent:
            audio.answered()
            answered += 1
        elif action == "taken":
            audio.taken()
            segment = answered
        elif action == "restart":
            audio.restart()
            begin = segment = answered
        found = audio.decoded()
        first = begin + found.frame // FRAMES
        assert found.frame % FRAMES == 0
        assert [*found.pcm[::STEP]] == [*range(first, answered)]
        wanted = max(begin, segment - BEFORE, answered - MOST)
        assert first <= wanted
        assert answered - first <= MOST


def test_a_decoder_is_given_the_audio_of_its_frames() -> None:
    """After endpoints, flushes and the end alike, whatever of the audio was sent ahead."""
    bench = SessionBench(decoder=Rereading())
    audio = np.concatenate([spell("one two"), silence(1.2), spell("three"), silence(1.2)])
    bench.send(audio)
    bench.finalize()
    bench.send(spell("four"))
    bench.close()
    bench.answer()
    decoder = bench.decoder
    assert isinstance(decoder, Rereading)
    assert bench.text() == "one two three four"
    received = [(found, frames) for found, frames in decoder.received if found is not None]
    assert len(received) == len(decoder.received)
    for found, frames in received:
        assert len(found.pcm) == (frames + CONFIG.delay_frames - found.frame) * CONFIG.frame_samples
    (one, _), (three, _), *_, (four, _) = received
    assert one.frame == 0
    assert np.array_equal(one.pcm, audio[: len(one.pcm)])
    begin = three.frame * CONFIG.frame_samples
    assert np.array_equal(three.pcm, audio[begin : begin + len(three.pcm)])
    assert four.frame == 0
    assert np.array_equal(four.pcm[: len(spell("four"))], spell("four"))


def test_no_audio_is_kept_for_a_decoder_that_does_not_read_it() -> None:
    decoder = Rereading(reads_audio=False)
    bench = SessionBench(decoder=decoder)
    bench.send(spell("one"))
    bench.close()
    bench.answer()
    assert bench.text() == "one"
    assert decoder.received
    assert all(audio is None for audio, _ in decoder.received)
