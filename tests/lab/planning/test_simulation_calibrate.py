"""Calibration: the fit recovers known costs, and the loopback client counts batches and rows correctly."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from loadtest.measurement.engine_times import EngineTimes, measure_engine
from model.ctc.greedy import GreedyDecoder
from tests.support.servers.fakes import ChunkedModel
from tests.support.servers.recognizers.spelling import CONFIG, SpellingModel, silence, spell
from tutti_asr_lab.planning import calibrate, loopback, second_passes
from tutti_asr_lab.simulation.service_table import ServiceTable

BATCH_S, RECEIVE_S, DECODE_S, WRITE_S, OPEN_S, IDLE = 1.5e-4, 4e-5, 1e-5, 3e-5, 2e-3, 0.01
TABLE = ServiceTable.constant({1: 0.001, 8: 0.002})


def window(batches, rows, *, written=True, opened=0, round_trips_s=(), steps=()):
    """Return the counters of a server with the costs above."""
    row_s = RECEIVE_S + DECODE_S + (WRITE_S if written else 0.0)
    loop_s = batches * BATCH_S + rows * row_s + opened * OPEN_S + IDLE * calibrate.WINDOW_S * (not opened)
    return loopback.Window(loop_s, batches, rows, rows * DECODE_S, tuple(round_trips_s), tuple(steps))


def test_a_model_with_chunks_is_timed_with_single_steps():
    times = measure_engine(ChunkedModel, (1, 2, 4), batches=6, tries=2)
    assert {rows: len(found) for rows, found in times.step_s.items()} == {1: 6, 2: 6, 4: 6}


def test_the_fit_recovers_known_costs():
    alone_s = BATCH_S + RECEIVE_S + DECODE_S + WRITE_S + 0.001 + 5e-5 + calibrate.WAKES * 6e-5
    woken = [
        loopback.Batch(1, 0.001 + number * 1e-6, wait_s, 1e-5) for number, wait_s in enumerate((5e-5, 6e-5, 25e-5))
    ]
    windows = {
        20: window(740, 750, round_trips_s=[alone_s + 2e-4], steps=woken),
        60: window(1_900, 2_250, round_trips_s=[0.003]),
        120: window(2_000, 4_500, round_trips_s=[0.004]),
        200: window(1_500, 7_500, round_trips_s=[0.005]),
    }
    short = window(360, 360, opened=calibrate.SHORT_STREAMS)
    times = EngineTimes({1: [0.001], 8: [0.002]}, {1: 0.001 + 5e-5, 8: 0.002 + 5e-5})
    found = calibrate.fit_overheads(times, windows, window(1_600, 7_500, written=False), short, table=TABLE)
    assert found.batch_s == pytest.approx(BATCH_S, rel=0.01)
    assert found.receive_s == pytest.approx(RECEIVE_S, rel=0.05)
    assert found.decode_s == pytest.approx(DECODE_S, rel=0.05)
    assert found.write_s == pytest.approx(WRITE_S, rel=0.05)
    assert found.open_s == pytest.approx(OPEN_S, rel=0.01)
    assert found.engine_s == pytest.approx(5e-5, rel=0.01)
    assert found.path_s == pytest.approx(2e-4, rel=0.1)
    assert found.wake_s == pytest.approx(6e-5, rel=0.01)


@pytest.mark.parametrize(
    ("stream_s", "tried"), [(1e-3, calibrate.LEVELS), (0.012, calibrate.LEVELS[:2]), (0.1, calibrate.LEVELS[:1])]
)
def test_the_load_stops_rising_when_the_event_loop_is_full(stream_s, tried):
    windows = calibrate.measure_rising_loads(
        lambda streams: loopback.Window(stream_s * streams * calibrate.WINDOW_S, 1, 1, 0.0, ())
    )
    assert tuple(windows) == tried


def test_fitted_interference_grows_with_the_load_of_the_event_loop():
    def loaded(busy):
        """Return batches that take longer by 0.1 ms plus 4 ms · load, one in ten by three times that."""
        longer_s = 1e-4 + 4e-3 * busy
        steps = {
            loopback.Batch(rows, TABLE.median(rows) + longer_s * (3.0 if n == 0 else 7 / 9), 1e-4, 1e-4)
            for rows in range(1, 9)
            for n in range(10)
        }
        times = list(steps) * 10
        return loopback.Window(busy * calibrate.WINDOW_S, 1, 1, 0.0, (), tuple(times))

    steady = {n: loaded(busy) for n, busy in ((20, 0.01), (60, 0.1), (120, 0.2), (200, 0.3))}
    found = calibrate.fit_interference(steady, TABLE)
    assert found.busy_s > 0
    assert found.spread.shape == tuple(sorted(found.spread.shape))
    median_s = np.median([batch.step_s - TABLE.median(batch.rows) for batch in steady[200].steps])
    assert found.idle_s + 0.3 * found.busy_s == pytest.approx(median_s, rel=0.01)


def test_batches_as_fast_as_in_the_engine_alone_have_no_interference():
    steps = tuple(loopback.Batch(rows, 0.999 * TABLE.median(rows), 1e-4, 1e-4) for rows in range(1, 9))
    steady = {n: loopback.Window(0.1, 1, 1, 0.0, (), steps) for n in (20, 60, 120)}
    found = calibrate.fit_interference(steady, TABLE)
    assert (found.idle_s, found.busy_s) == (0.0, 0.0)


def test_spreads_are_those_of_wake_ups_at_the_lightest_and_of_decoding_at_the_heaviest_load():
    lightest = [loopback.Batch(1, 0.001, wait_s, 1e-4) for wait_s in (1e-4, 2e-4, 3e-4)]
    heaviest = [
        loopback.Batch(rows, 0.001, 5e-3, (1e-4 + rows * 1e-5) * (2.0 if late else 0.5))
        for rows in range(1, 30)
        for late in (False, False, True)
    ]
    windows = {streams: window(1, 1, steps=steps) for streams, steps in ((20, lightest), (80, []), (160, heaviest))}
    found = calibrate.fit_spreads(windows)
    assert found.wake.shape[0] == pytest.approx(0.5)
    assert found.wake.shape[-1] == pytest.approx(1.5)
    assert found.loop.shape[-1] / found.loop.shape[0] == pytest.approx(4.0, rel=0.05)


def test_decoding_that_the_clock_says_took_longer_than_the_loops_own_time_is_limited_to_that():
    slow = {
        n: window(b, r, round_trips_s=[0.004], steps=[loopback.Batch(1, 0.001, 1e-4, 1e-4)])
        for n, b, r in ((20, 740, 750), (80, 1_900, 2_250), (160, 2_000, 4_500))
    }
    slow = {n: replace(found, decode_s=found.rows * 1e-3) for n, found in slow.items()}
    times = EngineTimes({1: [0.001], 8: [0.002]}, {1: 0.001, 8: 0.002})
    short = window(360, 360, opened=calibrate.SHORT_STREAMS)
    found = calibrate.fit_overheads(times, slow, window(1_600, 4_500, written=False), short, table=TABLE)
    assert min(found.receive_s, found.decode_s, found.write_s) >= 0
    assert found.receive_s + found.decode_s + found.write_s == pytest.approx(RECEIVE_S + DECODE_S + WRITE_S, rel=0.02)


def test_a_model_is_calibrated_with_speech_in_its_language():
    english, mandarin, other = (calibrate.speech(languages, 1_280) for languages in (("en",), ("zh",), ("ru",)))
    assert english == other
    assert english != mandarin
    assert {len(step) for step in mandarin} == {2 * 1_280}
    assert len(mandarin) == calibrate.SPEECH_S / 0.08


def test_a_cost_with_a_negative_fit_is_zero():
    done = np.array([(100.0, 100.0, 3.0), (50.0, 200.0, 3.0), (20.0, 400.0, 3.0)])
    shares = calibrate._non_negative_fit(done, [row * 1e-4 - batch * 1e-5 for batch, row, _ in done])
    assert min(shares) == 0.0
    assert shares[1] == pytest.approx(1e-4, rel=0.2)


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="times of threads are read from Linux")
def test_the_loopback_client_gets_a_result_for_each_step(live_server):
    server = live_server()
    port = int(server.host.rsplit(":", 1)[1])
    audio = [bytes(2 * CONFIG.step_samples)]
    seen = loopback.load(port, os.getpid(), audio, streams=3, seconds=0.5, answers=True)
    assert seen.rows == pytest.approx(3 * 0.5 / 0.08, abs=4)
    assert len(seen.round_trips_s) == pytest.approx(seen.rows, abs=4)
    assert all(0 < took_s < 5 for took_s in seen.round_trips_s)
    assert 1 <= seen.batches <= seen.rows
    short = loopback.short_streams(port, os.getpid(), audio[0], 3)
    assert short.rows % 3 == 0
    assert short.rows >= 3 * 2  # its step and at least one flush step


class Rereading(GreedyDecoder):
    reads_audio = False

    def second_pass(self, state, audio):
        return (lambda: words) if (words := self.words(state)) else None


def test_second_passes_are_timed_at_the_ends_of_segments():
    decoder, pcm = Rereading(CONFIG.vocabulary, CONFIG.frame_s), np.concatenate([spell("yes "), silence(10.4)])
    steps = [part.tobytes() for part in np.array_split(pcm, len(pcm) // CONFIG.step_samples)]
    found = second_passes.measure_passes(SpellingModel(), decoder, {"context": decoder}, steps)["context"]
    assert (found.audio_steps, len(found.steps)) == (len(steps), 1)
    assert 0 < found.seconds[0] < 1
