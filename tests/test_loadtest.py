"""The load generator against a server whose delays and faults are known: it must report each of them."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
import soundfile
from fake_listen import STEP_S, FakeListen, Plan

from clients.messages import StepTimings
from loadtest import compare as compare_module
from loadtest import served as served_module
from loadtest.ceiling import Ceiling
from loadtest.compare import compare
from loadtest.comparison import Comparison, markdown, table
from loadtest.environment import describe
from loadtest.errors import BadManifest, BadSettings, NoReference, ServerNotReady
from loadtest.latencies import Latencies
from loadtest.measures import LevelMeasures, LevelReport, ServerFigures
from loadtest.pacer import Pacer
from loadtest.playback import Ending, Outcome, Playback
from loadtest.recordings import Recording, choose, load, shipped_manifest
from loadtest.report import Document, faults, warnings
from loadtest.run import measure_levels, run_loadtest
from loadtest.served import served
from loadtest.settings import LoadSettings, parse_streams

T0 = 8_675_309.25  # no test depends on where time starts
RECORDINGS = 3
STEPS = 4  # whole steps in each recording, and half a step more
LEVEL_S = 0.6
WITHIN_S = 15.0


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """Three recordings of 0.36 s, all different."""
    rng = np.random.default_rng(3)
    lines = []
    for number in range(RECORDINGS):
        samples = rng.integers(-9000, 9000, round((STEPS + 0.5) * STEP_S * 16000), dtype=np.int16)
        soundfile.write(tmp_path / f"r{number}.wav", samples, 16000)
        lines.append(json.dumps({"audio": f"r{number}.wav", "text": "unused"}))
    path = tmp_path / "manifest.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def settings(manifest: Path, url: str = "", **changes: object) -> LoadSettings:
    small = LoadSettings(url=url, streams=(3,), seconds=LEVEL_S, warmup_s=0.1, drain_s=0.4, manifest=manifest)
    return replace(small, **changes)  # type: ignore[arg-type]


def under_load(manifest: Path, plan: Callable[[int], Plan], **changes: object) -> LevelReport:
    """The report of one level; `plan` treats its connections, counted after those of the reference pass."""

    async def main() -> LevelReport:
        after_reference = FakeListen(lambda number: plan(number - RECORDINGS) if number >= RECORDINGS else Plan())
        async with after_reference.running() as server:
            result = await measure_levels(settings(manifest, server.url, **changes), tell=lambda _: None)
        [level] = result.document.levels
        return level

    return asyncio.run(asyncio.wait_for(main(), WITHIN_S))


# One playback, told the time


class Tape:
    """Records what a playback reports, relative to T0."""

    def __init__(self) -> None:
        self.steps: list[tuple[float, float]] = []
        self.unanswered: list[tuple[float, float]] = []
        self.sends: list[tuple[float, float]] = []
        self.finals: list[tuple[float, float]] = []
        self.timings: list[StepTimings] = []

    def step_answered(self, scheduled_s: float, answered_s: float) -> None:
        self.steps.append(_from_t0(scheduled_s, answered_s))

    def step_unanswered(self, scheduled_s: float, given_up_s: float) -> None:
        self.unanswered.append(_from_t0(scheduled_s, given_up_s))

    def step_timings(self, answered_s: float, timings: StepTimings) -> None:
        self.timings.append(timings)

    def sent(self, scheduled_s: float, sent_s: float) -> None:
        self.sends.append(_from_t0(scheduled_s, sent_s))

    def final(self, scheduled_s: float, answered_s: float) -> None:
        self.finals.append(_from_t0(scheduled_s, answered_s))


def _from_t0(first: float, second: float) -> tuple[float, float]:
    return round(first - T0, 4), round(second - T0, 4)


def recording(steps: int = 3, rest_s: float = 0.02) -> Recording:
    ends_s = tuple((step + 1) * STEP_S for step in range(steps)) + ((steps * STEP_S + rest_s,) if rest_s else ())
    return Recording(Path("r"), (b"x",) * len(ends_s), ends_s, steps)


def answer(cursor_s: float, text: str = "", *, final: bool = False) -> bytes:
    message = {
        "type": "Results",
        "start": 0.0,
        "duration": cursor_s,
        "is_final": final,
        "channel": {"alternatives": [{"transcript": text}]},
        "tutti": {"queue_wait_ms": 1.0, "step_ms": 2.0, "decode_ms": 3.0},
    }
    return msgspec.json.encode(message)


def played(tape: Tape, *, until: float = 1.0) -> Playback:
    """A playback whose messages have all been sent on time up to `until`."""
    playback = Playback(recording(), T0, tape)
    playback.opened(T0 + 0.04)
    while playback.next_s is not None and playback.next_s <= T0 + until:
        playback.take(playback.next_s)
    return playback


def test_latency_counts_from_the_scheduled_send_to_the_first_answer_that_covers_the_step() -> None:
    tape = Tape()
    playback = played(tape)
    playback.message(answer(0.08), T0 + 0.09)
    playback.message(answer(0.08), T0 + 0.10)  # again: nothing new is covered
    playback.message(answer(0.2399), T0 + 0.30)  # rounded down, covers two at once
    assert tape.steps == [(0.08, 0.09), (0.16, 0.3), (0.24, 0.3)]
    assert len(tape.timings) == 3


def test_a_late_sender_does_not_make_the_latency_smaller() -> None:
    tape = Tape()
    playback = Playback(recording(), T0, tape)
    playback.opened(T0 + 0.04)
    playback.take(T0 + 0.13)
    playback.message(answer(0.08), T0 + 0.14)
    assert tape.steps == [(0.08, 0.14)]
    assert tape.sends == [(0.08, 0.13)]


def test_a_slow_handshake_is_latency_and_not_the_generators_lag() -> None:
    tape = Tape()
    playback = Playback(recording(), T0, tape)
    playback.opened(T0 + 0.10)
    playback.take(T0 + 0.10)
    playback.take(T0 + 0.16)
    playback.message(answer(0.16), T0 + 0.17)
    assert tape.steps == [(0.08, 0.17), (0.16, 0.17)]
    assert tape.sends == [(0.16, 0.16)]


def test_an_answer_to_audio_that_was_not_sent_counts_for_nothing() -> None:
    tape = Tape()
    playback = played(tape, until=0.1)
    playback.message(answer(9.0), T0 + 0.11)
    assert tape.steps == [(0.08, 0.11)]


def test_a_complete_playback_has_its_text_and_its_final_latency() -> None:
    tape = Tape()
    playback = played(tape)
    playback.message(answer(0.16, "one", final=True), T0 + 0.2)
    playback.close(playback.end_s)
    playback.message(answer(0.26, "two", final=True), T0 + 0.29)
    playback.message(b'{"type":"Metadata"}', T0 + 0.3)
    outcome = playback.closed(1000, "", T0 + 0.31)
    assert (outcome.ending, outcome.text) == (Ending.COMPLETE, "one two")
    assert tape.finals == [(0.26, 0.29)]
    assert not tape.unanswered


def test_a_playback_cut_at_the_end_of_the_level_is_not_compared() -> None:
    tape = Tape()
    playback = played(tape, until=0.1)
    playback.close(T0 + 0.16)
    playback.message(answer(0.08, "one", final=True), T0 + 0.17)
    assert playback.closed(1000, "", T0 + 0.18).ending is Ending.CUT
    assert not tape.finals


@pytest.mark.parametrize(
    ("messages", "code", "problem"),
    [
        ([answer(0.26, final=True)], 1011, "closed with 1011 why"),
        ([answer(0.26)], 1000, "no final after CloseStream"),
        ([answer(0.16, final=True)], 1000, "steps were never answered"),
        ([b'{"type":"Results"}', answer(0.26, final=True)], 1000, "unreadable message"),
        ([b'{"type":"Error","description":"bad"}', answer(0.26, final=True)], 1000, "the server complained: bad"),
    ],
)
def test_every_way_to_end_badly_is_a_failure_with_its_reason(messages: list[bytes], code: int, problem: str) -> None:
    tape = Tape()
    playback = played(tape)
    playback.close(playback.end_s)
    for message in messages:
        playback.message(message, T0 + 0.3)
    outcome = playback.closed(code, "why" if code != 1000 else "", T0 + 0.4)
    assert outcome.ending is Ending.FAILED
    assert outcome.problem.startswith(problem)


def test_a_close_in_the_middle_is_a_failure_even_with_1000() -> None:
    outcome = played(Tape(), until=0.1).closed(1000, "", T0 + 0.12)
    assert outcome.problem == "closed with 1000 before the end of the audio"


def test_a_step_without_an_answer_keeps_its_age() -> None:
    tape = Tape()
    playback = played(tape)
    playback.message(answer(0.16), T0 + 0.2)
    playback.failed("time is up", T0 + 5.0)
    assert tape.unanswered == [(0.24, 5.0)]


# Figures


def test_measures_keep_to_their_window_and_add_up() -> None:
    measures = LevelMeasures(T0, T0 + 10, {"r": "right"})
    measures.step_answered(T0 - 1, T0 + 5)  # warm-up
    for milliseconds in range(1, 101):
        measures.step_answered(T0 + 1, T0 + 1 + milliseconds * 1e-3)
    measures.step_unanswered(T0 + 2, T0 + 4)
    measures.ended(Outcome(recording(), Ending.COMPLETE, text="right"))
    measures.ended(Outcome(recording(), Ending.COMPLETE, text="wrong"))
    measures.ended(Outcome(recording(), Ending.REFUSED, "full"))
    report = measures.report(streams=1, to_s=T0 + 99, policy="p", generator_cpu_cores=0.1, server=ServerFigures())
    assert report.chunk_latency_ms is not None
    assert report.chunk_latency_ms.p50 == pytest.approx(51, rel=0.01)
    assert report.chunk_latency_ms.max == pytest.approx(2000, rel=0.001)
    assert (report.steps, report.unanswered, report.seconds, report.audio_s_per_s) == (101, 1, 10.0, 0.8)
    assert (report.complete, report.compared, report.mismatched, report.refused) == (2, 2, 1, 1)
    assert report.mismatches[0].under_load == "wrong"
    assert report.problems == {"full": 1}
    assert len(faults(report)) == 2


def test_nothing_measured_is_none_and_a_fault() -> None:
    measures = LevelMeasures(T0, T0 + 10, {})
    report = measures.report(streams=1, to_s=T0, policy="", generator_cpu_cores=0.0, server=ServerFigures())
    assert report.chunk_latency_ms is None
    assert faults(report) == ["no step was measured"]


def test_a_cdf_ends_at_one() -> None:
    latencies = Latencies()
    for milliseconds in (1, 1, 2, 4):
        latencies.add(milliseconds * 1e-3)
    assert [(round(at), share) for at, share in latencies.cdf()] == [(1, 0.5), (2, 0.75), (4, 1.0)]


def test_the_pacer_calls_in_order_and_never_early() -> None:
    now = T0
    timers: list[tuple[float, Callable[[], None]]] = []
    called: list[str] = []

    def call_later(delay_s: float, call: Callable[[], None]) -> SimpleNamespace:
        timers.append((delay_s, call))
        return SimpleNamespace(cancel=lambda: None)

    pacer = Pacer(SimpleNamespace(call_later=call_later), lambda: now)  # type: ignore[arg-type]
    pacer.at(T0 + 2, lambda: called.append("second"))
    pacer.at(T0 + 1, lambda: pacer.at(T0 + 1.5, lambda: called.append("nested")))
    assert [delay_s for delay_s, _ in timers] == [2, 1]
    now = T0 + 1.2
    timers[-1][1]()
    assert called == []
    assert timers[-1][0] == pytest.approx(0.3)
    now = T0 + 3
    timers[-1][1]()
    assert called == ["nested", "second"]
    assert len(timers) == 3


# Recordings and settings


def test_recordings_are_cut_into_whole_steps_and_a_rest(manifest: Path) -> None:
    [first, *_] = load(manifest, level_s=9.0, at_most=9, seed=1)
    assert first.steps == STEPS
    assert [len(message) for message in first.messages] == [2560] * STEPS + [1280]
    assert first.duration_s == pytest.approx(0.36)


def test_short_recordings_are_preferred_and_the_number_is_bounded(manifest: Path) -> None:
    lines = [json.dumps({"audio": f"r{n % RECORDINGS}.wav", "duration": 0.36 if n % 2 else 99.0}) for n in range(8)]
    manifest.write_text("\n".join(lines))
    assert len(load(manifest, level_s=9.0, at_most=9, seed=1)) == 4
    assert len(load(manifest, level_s=9.0, at_most=2, seed=1)) == 2
    assert len(load(manifest, level_s=0.1, at_most=3, seed=1)) == 3  # none fits: the shortest


def test_the_seed_decides_which_recordings_are_taken(manifest: Path) -> None:
    taken = [[r.path for r in load(manifest, level_s=9.0, at_most=1, seed=seed)] for seed in (1, 1, 2, 3, 4, 5)]
    assert taken[0] == taken[1]
    assert len({path for [path] in taken}) > 1


def test_what_fits_into_the_time_left_is_chosen() -> None:
    pool = [recording(steps, 0.0) for steps in (2, 4, 8)]
    rng = random.Random(1)
    assert {choose(pool, 1.0, rng).steps for _ in range(50)} == {2, 4, 8}
    assert {choose(pool, 0.4, rng).steps for _ in range(50)} == {2, 4}
    assert choose(pool, 0.1, rng).steps == 2


@pytest.mark.parametrize("content", [None, "", "not json", '{"audio": "missing.wav"}'])
def test_a_manifest_that_cannot_be_used_is_named(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "list.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(BadManifest, match=r"list\.jsonl|missing\.wav"):
        load(path, level_s=9.0, at_most=9, seed=1)


def test_the_shipped_recordings_can_be_played() -> None:
    assert shipped_manifest().is_file()
    assert load(None, level_s=20.0, at_most=3, seed=1)


def test_settings_out_of_range_are_refused() -> None:
    assert parse_streams("10,50") == (10, 50)
    for text in ("ten", "", "1,,2"):
        with pytest.raises(BadSettings):
            parse_streams(text)
    for changes in ({"streams": ()}, {"streams": (0,)}, {"seconds": 0.0}, {"seconds": 1e9}, {"drain_s": 0.0}):
        with pytest.raises(BadSettings):
            settings(Path("m"), **changes)


# Levels against a known server


def test_a_good_server_gets_a_clean_report_with_its_own_delay_in_it(manifest: Path) -> None:
    level = under_load(manifest, lambda _: Plan(delay_s=0.02))
    assert faults(level) == []
    assert level.chunk_latency_ms is not None
    assert level.final_latency_ms is not None
    assert 20 <= level.chunk_latency_ms.p50 < 200
    assert 20 <= level.final_latency_ms.p50 < 300  # the final waits behind the answer to the last step
    assert level.compared == level.complete >= 3
    assert level.steps == pytest.approx(3 * LEVEL_S / STEP_S * STEPS / (STEPS + 0.5), abs=4)
    assert (level.queue_wait_ms.mean, level.step_ms.mean, level.decode_ms.p98) == pytest.approx((1.0, 2.0, 0.5), 0.01)  # type: ignore[union-attr]
    assert level.server.mean_batch == 2.0
    assert level.generator_cpu_cores > 0


def test_a_garbled_transcript_is_a_mismatch(manifest: Path) -> None:
    level = under_load(manifest, lambda number: Plan(garble=number == 1))
    assert (level.mismatched, level.failed) == (1, 0)
    assert "garbled" in level.mismatches[0].under_load
    assert faults(level)


def test_a_dropped_answer_shows_as_the_latency_of_a_whole_step(manifest: Path) -> None:
    level = under_load(manifest, lambda _: Plan(skip_step=1))
    assert faults(level) == []
    assert level.chunk_latency_ms is not None
    assert level.chunk_latency_ms.max >= 80


def test_a_stream_that_never_gets_an_answer_is_a_failure(manifest: Path) -> None:
    level = under_load(manifest, lambda number: Plan(silent=number == 0))
    assert level.failed == 1
    assert level.unanswered > 0
    assert "no end within" in next(iter(level.problems))


def test_refusals_are_counted_apart_from_failures(manifest: Path) -> None:
    level = under_load(manifest, lambda number: Plan(refuse=503 if number % 2 else 0))
    assert level.refused >= 1
    assert level.failed == 0
    assert "503" in next(iter(level.problems))
    assert any("refused" in warning for warning in warnings(level))


@pytest.mark.parametrize(
    ("plan", "problem"),
    [(Plan(close_after=2), "closed with 1011 NET-0000 stall"), (Plan(no_final=True), "no final after CloseStream")],
)
def test_broken_streams_are_failures_with_their_reason(manifest: Path, plan: Plan, problem: str) -> None:
    level = under_load(manifest, lambda number: plan if number == 2 else Plan())
    assert level.failed == 1
    assert level.problems == {problem: 1}


def test_a_recording_that_fails_alone_stops_the_test(manifest: Path) -> None:
    async def main() -> None:
        async with FakeListen(lambda _: Plan(close_after=1)).running() as server:
            with pytest.raises(NoReference, match=r"r\d\.wav.*1011"):
                await measure_levels(settings(manifest, server.url), tell=lambda _: None)

    asyncio.run(asyncio.wait_for(main(), WITHIN_S))


def test_ctrl_c_keeps_what_was_measured(manifest: Path) -> None:
    def plan(number: int) -> Plan:
        if number == RECORDINGS + 4:  # the second recording of some stream
            os.kill(os.getpid(), signal.SIGINT)
        return Plan()

    async def main() -> Document:
        async with FakeListen(plan).running() as server:
            long = settings(manifest, server.url, streams=(3, 5), seconds=60.0)
            return (await measure_levels(long, tell=lambda _: None)).document

    document = asyncio.run(asyncio.wait_for(main(), WITHIN_S))
    assert document.interrupted
    [level] = document.levels
    assert level.streams == 3
    assert 0 < level.seconds < 5
    assert level.steps > 0
    assert level.failed == 0


# The command


def test_the_last_line_is_the_document(manifest: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    picture = tmp_path / "pictures" / "p.png"
    with FakeListen().in_thread() as server:
        code = run_loadtest(settings(manifest, server.url, policy_label="x"), as_json=True, plot_path=picture)
    assert code == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    [level] = document["levels"]
    assert {"p50", "p90", "p95", "p98", "p99", "max"} <= level["chunk_latency_ms"].keys()
    assert (level["streams"], level["policy"], level["failed"], level["mismatched"]) == (3, "x", 0, 0)
    assert {"hardware", "python", "versions", "commit", "seed", "date"} <= document["environment"].keys()
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_bad_result_is_a_bad_exit_code(manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeListen(lambda number: Plan(garble=number == RECORDINGS)).in_thread() as server:
        assert run_loadtest(settings(manifest, server.url)) == 1
    assert "differ from the one alone" in capsys.readouterr().out


def test_a_server_that_is_not_there_is_said_so(manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_loadtest(settings(manifest, "ws://127.0.0.1:9")) == 1
    assert "no server at ws://127.0.0.1:9" in capsys.readouterr().err


# The comparison


def test_policies_are_compared_side_by_side(
    manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[list[str]] = []

    with FakeListen(lambda _: Plan(delay_s=0.01)).in_thread() as server:

        class Served:
            def __init__(self, options: list[str]) -> None:
                started.append(options)

            def __enter__(self) -> str:
                return server.url

            def __exit__(self, *_: object) -> None:
                return

        monkeypatch.setattr(compare_module, "served", Served)
        code = compare(
            settings(manifest),
            ["eager", "single"],
            name="n",
            command="make bench",
            folder=tmp_path / "results",
            ceiling=lambda: Ceiling({1: 1.5, 64: 10.0}, precision="bf16", threads=1),
        )
    assert code == 0
    assert started == [["--policy", "eager"], ["--policy", "single"]]
    out, err = capsys.readouterr()
    assert "batch 64: 10.00 ms, 512 streams" in err
    kept = msgspec.json.decode((tmp_path / "results" / "n.json").read_bytes(), type=Comparison)
    assert msgspec.json.decode(out.splitlines()[-1], type=Comparison) == kept
    assert [row[:2] for row in table(kept)] == [("3", "eager"), ("3", "single")]
    assert table(kept)[0][5] == "1.0×"
    page = (tmp_path / "results" / "n.md").read_text()
    assert "| 3 | eager |" in page
    assert "`make bench`" in page
    assert (tmp_path / "results" / "n.png").is_file()


def test_a_comparison_without_a_ceiling_or_a_second_policy_still_reads() -> None:
    report = LevelMeasures(T0, T0 + 1, {}).report(
        streams=5, to_s=T0 + 1, policy="", generator_cpu_cores=0.0, server=ServerFigures()
    )
    page = markdown(Comparison("c", None, {"eager": Document((report,), describe(1))}), "n", "n.png")
    assert "Ceiling: not measured" in page
    assert "| 5 | eager | – |" in page


READY = """
import http.server, sys
class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/readyz" else 404)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Ready).serve_forever()
"""


def test_a_server_of_our_own_is_awaited_and_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_module, "serve_command", lambda port, _: [sys.executable, "-c", READY, str(port)])
    with served([]) as url:
        port = int(url.rpartition(":")[2])
        assert served_module._is_ready(f"http://127.0.0.1:{port}/readyz")
    assert not served_module._is_ready(f"http://127.0.0.1:{port}/readyz")


def test_a_server_that_ends_at_once_is_reported_with_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    failing = [sys.executable, "-c", "print('no weights'); raise SystemExit(3)"]
    monkeypatch.setattr(served_module, "serve_command", lambda *_: failing)
    with pytest.raises(ServerNotReady, match=r"ended with 3:\nno weights"), served([]):
        pass
