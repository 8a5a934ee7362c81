"""Latency of steps longer than a message: only the message that completes a step is measured."""

from __future__ import annotations

from pathlib import Path

from loadtest.generator.playback import Playback
from loadtest.generator.recordings import Recording


class Recorder:
    def __init__(self) -> None:
        self.latencies: list[float] = []

    def step_answered(self, scheduled_s: float, answered_s: float) -> None:
        self.latencies.append(round(answered_s - scheduled_s, 6))

    def __getattr__(self, name: str):
        return lambda *_: None


def playback(recorder: Recorder, *, long_steps: bool) -> Playback:
    ends = tuple(round(0.08 * (number + 1), 3) for number in range(10))
    recording = Recording(Path("r.wav"), (b"",) * 10, ends, steps=10, frames=(b"",) * 10)
    playing = Playback(recording, 100.0, recorder, long_steps=long_steps)
    playing.opened(99.9)
    while playing.next_s is not None:
        playing.take(playing.next_s)
    return playing


def answer(playing: Playback, cursor_s: float, now: float) -> None:
    frame = (
        '{"type":"Results","start":0.0,"duration":%f,"is_final":false,"channel":{"alternatives":[{"transcript":""}]}}'
    )
    playing.message((frame % cursor_s).encode(), now)


def test_a_result_is_measured_from_the_message_that_completes_its_step() -> None:
    recorder = Recorder()
    playing = playback(recorder, long_steps=True)
    answer(playing, 0.3, 100.33)  # ends in the fourth message, sent at 0.32
    answer(playing, 0.64, 100.66)  # with the end of the eighth
    assert recorder.latencies == [0.01, 0.02]


def test_without_the_option_every_covered_message_is_measured() -> None:
    recorder = Recorder()
    answer(playback(recorder, long_steps=False), 0.24, 100.25)
    assert recorder.latencies == [0.17, 0.09, 0.01]


def test_a_result_after_close_stream_is_not_a_step() -> None:
    recorder = Recorder()
    playing = playback(recorder, long_steps=True)
    answer(playing, 0.3, 100.33)
    playing.close(100.8)
    answer(playing, 0.8, 100.95)
    assert recorder.latencies == [0.01]
