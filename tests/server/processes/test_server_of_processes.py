"""A server of several processes: the same words, losses of each process, exactness and operations.

The main one has two engines, so that front ends have different ones.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from model import checkpoint
from server.processes.front_end import REPORT_S
from tests.support.servers.front_ends import ENGINE_HOST, FRONT_END, RAW, FrontEnds, speech
from tutti_asr_lab.processes import Process, connections
from tutti_asr_lab.trials.streams import Audio, Outcome

STREAM_S = 5.0
HOSTS = 3  # of the server with two front ends
AT_ONCE_S = 0.5
"""For a restart: another engine takes seconds to start, and is to take over while streams are live."""


@pytest.fixture(scope="module")
def played() -> list[Audio]:
    return speech(6, STREAM_S)


@pytest.fixture(scope="module")
def one() -> Iterator[FrontEnds]:
    """A server of one process."""
    with FrontEnds(0) as server:
        yield server


@pytest.fixture(scope="module")
def texts(one: FrontEnds, played: list[Audio]) -> dict[str, str]:
    """The words of each audio from a server of one process."""
    return texts_of(one, played)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("two") / "log"


@pytest.fixture(scope="module")
def two(log: Path) -> Iterator[FrontEnds]:
    """A server with two front ends, each with an engine host of its own, and a spare host.

    Tests leave it as it was, but for the one that drains it, its last.
    """
    with FrontEnds(2, "--engines", "2", "--threads", "1", log=log, spare=True) as server:
        yield server


def all_hosts(server: FrontEnds) -> list[Process]:
    """The engine hosts that serve and the spare one, once all run, the oldest first."""
    server.until(lambda: len(server.processes(ENGINE_HOST)) == HOSTS)
    return server.processes(ENGINE_HOST)


def busy_s(process: Process) -> float:
    """Return the processor time of a process so far. Source: clock_getcpuclockid(3), on Linux."""
    return time.clock_gettime((~process.pid << 3) | 2)


def kill_a_front_end(server: FrontEnds, streams: list[int]) -> None:
    """Kill the front end with the fewest streams, but with one at least; append their number."""
    streams_of = {process: connections(process.pid) for process in server.processes(FRONT_END)}
    ended = min((process for process in streams_of if streams_of[process]), key=lambda process: streams_of[process])
    streams.append(streams_of[ended])
    server.kill(ended)


def texts_of(server: FrontEnds, played: list[Audio]) -> dict[str, str]:
    """The words of each audio."""
    outcomes = asyncio.run(server.play(played, realtime=False))
    assert all(outcome.finished and outcome.text for outcome in outcomes), outcomes
    return {outcome.audio.name: outcome.text for outcome in outcomes}


def check(outcomes: list[Outcome], texts: dict[str, str]) -> None:
    assert [outcome.problem for outcome in outcomes] == [""] * len(outcomes)
    assert {outcome.audio.name: outcome.text for outcome in outcomes} == {
        outcome.audio.name: texts[outcome.audio.name] for outcome in outcomes
    }


def during(
    server: FrontEnds, played: list[Audio], fault: Callable[[], Any], after_s: float = STREAM_S / 2, **how: Any
) -> list[Outcome]:
    """Play in real time and cause a fault, by default in the middle."""

    async def run() -> list[Outcome]:
        playing = asyncio.ensure_future(server.play(played, **how))
        await asyncio.sleep(after_s)
        await asyncio.to_thread(fault)
        return await playing

    return asyncio.run(run())


def test_both_engines_compute_and_the_words_are_those_of_one_process(
    two: FrontEnds, played: list[Audio], texts: dict[str, str]
) -> None:
    hosts = all_hosts(two)
    before = [busy_s(host) for host in hosts]
    check(asyncio.run(two.play(played)), texts)
    first, second, spare = (busy_s(host) - began for host, began in zip(hosts, before, strict=True))
    assert min(first, second) > 5 * spare
    assert min(first, second) > 0.3 * max(first, second), "each has half of the streams"
    assert len(two.processes(FRONT_END)) == 2


def test_starts_of_speech_are_those_of_one_process_and_such_streams_are_resumable(
    one: FrontEnds, two: FrontEnds, played: list[Audio]
) -> None:
    def received(server: FrontEnds) -> list[dict[str, Any]]:
        with server.opened(f"{RAW}&vad_events=true&resumable=true") as client:
            client.send(played[0].pcm.tobytes())
            client.send('{"type":"CloseStream"}')
            return [json.loads(frame) for frame in client]

    alone, served = received(one), received(two)
    starts = [[each["timestamp"] for each in frames if each["type"] == "SpeechStarted"] for frames in (alone, served)]
    assert starts[0] == starts[1] != []
    assert "Ticket" in {each["type"] for each in served}


def test_connections_are_shared_out_evenly(two: FrontEnds) -> None:
    two.until(two.both_serve)  # connections of the test before no longer count
    time.sleep(2 * REPORT_S)  # nor, after a report of each, those that it opened and closed
    clients = [two.opened() for _ in range(20)]
    try:
        by_front_end = [connections(process.pid) for process in two.processes(FRONT_END)]
        assert abs(by_front_end[0] - by_front_end[1]) <= 2
        assert two.metric('tutti_sessions_active{protocol="deepgram"}') == 20
    finally:
        for client in clients:
            client.close()


def test_the_metrics_are_those_of_the_whole_server(two: FrontEnds, played: list[Audio]) -> None:
    before = two.metric('tutti_sessions_total{outcome="completed",protocol="deepgram"}')
    asyncio.run(two.play(played[:4], realtime=False))
    two.until(lambda: two.metric('tutti_sessions_total{outcome="completed",protocol="deepgram"}') == before + 4)
    assert two.metric("tutti_sessions_max") == 64
    assert two.metric("tutti_ready") == 1
    with two.http as http:
        assert http.get("/v1/status").json()["system_health"] == "Healthy"
        assert http.get("/admin/models").json()[0]["phase"] == "loaded"


def test_a_batch_is_counted_once(two: FrontEnds, played: list[Audio]) -> None:
    rows = two.metric(f'tutti_batch_rows_total{{model="{model(two)}"}}')
    asyncio.run(two.play(played, realtime=False))
    steps = sum(len(audio.pcm) for audio in played) / checkpoint.read_config(checkpoint.SHIPPED).step_samples
    taken = two.metric(f'tutti_batch_rows_total{{model="{model(two)}"}}') - rows
    assert steps <= taken <= steps * 1.3, "steps, and those that flush the end of each stream"


def model(server: FrontEnds) -> str:
    with server.http as http:
        name: str = http.get("/v1/status").json()["model"]["name"]
    return name


def test_a_model_on_demand_is_loaded_in_the_engine_host_and_freed_again(two: FrontEnds, log: Path) -> None:
    with two.http as http:
        assert phase_of(two, "tutti-mandarin") == "not loaded"
        with two.opened(f"{RAW}&language=zh"):
            assert phase_of(two, "tutti-mandarin") == "loaded"
        assert http.post("/admin/models/tutti-mandarin/unload").status_code in (200, 202)
        two.until(lambda: phase_of(two, "tutti-mandarin") == "not loaded")
        two.until(lambda: "weights freed" in log.read_text(encoding="utf-8"))


def phase_of(server: FrontEnds, name: str) -> str:
    with server.http as http:
        return next(str(model["phase"]) for model in http.get("/admin/models").json() if model["name"] == name)


@pytest.mark.parametrize("lost", [1, 2])
def test_killed_engines_are_a_pause(two: FrontEnds, played: list[Audio], texts: dict[str, str], lost: int) -> None:
    busiest = sorted(all_hosts(two), key=busy_s)[-lost:]
    check(during(two, played, lambda: [two.kill(host) for host in busiest]), texts)
    assert not {host.pid for host in busiest} & {host.pid for host in all_hosts(two)}


def test_engines_restarted_by_an_operator_are_a_pause(
    two: FrontEnds, played: list[Audio], texts: dict[str, str]
) -> None:
    before = {process.pid for process in all_hosts(two)}

    def restart() -> None:
        with two.http as http:
            answer = http.post("/admin/engine/restart")
        assert answer.status_code == 200, answer.text
        assert answer.json()["seconds"] > 0

    check(during(two, played, restart, after_s=AT_ONCE_S), texts)
    two.until(lambda: not before & {process.pid for process in two.processes(ENGINE_HOST)})


def test_a_restart_whose_new_engine_is_killed_is_refused_and_the_present_one_continues(
    two: FrontEnds, played: list[Audio], texts: dict[str, str]
) -> None:
    all_hosts(two)
    with two.http as http, ThreadPoolExecutor() as pool:
        answer = pool.submit(http.post, "/admin/engine/restart")
        two.until(lambda: len(two.processes(ENGINE_HOST)) > HOSTS)
        two.kill(two.processes(ENGINE_HOST)[HOSTS])
        assert answer.result().status_code == 503
    assert "no new engine could start" in answer.result().text
    check(asyncio.run(two.play(played, realtime=False)), texts)


def test_the_kernel_ends_the_spare_host_first_and_then_the_engine(two: FrontEnds) -> None:
    def points(process: Process) -> int:
        return int(Path(f"/proc/{process.pid}/oom_score_adj").read_text())

    serving, _, spare = all_hosts(two)
    two.until(lambda: points(spare) > points(serving))
    assert points(serving) > max(map(points, two.processes(FRONT_END)))


def test_a_killed_front_end_ends_its_own_streams_alone(
    two: FrontEnds, played: list[Audio], texts: dict[str, str]
) -> None:
    completed = two.metric('tutti_sessions_total{outcome="completed",protocol="deepgram"}')
    two.until(two.both_serve)  # streams of the test before no longer count
    ended: list[int] = []
    outcomes = during(two, played, lambda: kill_a_front_end(two, ended))
    survived = [outcome for outcome in outcomes if outcome.finished]
    assert [len(played) - len(survived)] == ended
    check(survived, texts)
    two.until(lambda: len(two.processes(FRONT_END)) == 2)
    two.until(lambda: two.metric("tutti_ready") == 1)
    assert two.metric('tutti_sessions_total{outcome="completed",protocol="deepgram"}') >= completed
    slots = f'tutti_state_pool_slots_used{{model="{model(two)}"}}'
    two.until(lambda: two.metric(slots) == 0)
    two.until(two.both_serve)
    assert texts_of(two, played) == texts


def test_resumable_streams_of_a_killed_front_end_continue_at_another(
    two: FrontEnds, played: list[Audio], texts: dict[str, str]
) -> None:
    two.until(two.both_serve)
    ended: list[int] = []
    outcomes = during(two, played, lambda: kill_a_front_end(two, ended), resumable=True)
    check(outcomes, texts)
    assert [sum(bool(outcome.lost_at) for outcome in outcomes)] == ended
    assert {outcome.events.resumed for outcome in outcomes if outcome.lost_at} == {1}
    two.until(two.both_serve)


def test_a_signal_drains_all_front_ends(two: FrontEnds, played: list[Audio], texts: dict[str, str]) -> None:
    outcomes = during(two, played, lambda: os.kill(two.pid, signal.SIGTERM))
    check(outcomes, texts)
    two.until(lambda: not two.left())


def test_an_engine_that_hangs_is_replaced_and_a_second_signal_ends_all_at_once(
    played: list[Audio], texts: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TUTTI_STALL_TIMEOUT_S", "4.5")
    log = tmp_path / "log"
    with FrontEnds(1, log=log, spare=True) as server:
        server.until(lambda: log.read_text(encoding="utf-8").count("model loaded") == 2)  # the spare's, too
        host = server.processes(ENGINE_HOST)[0]
        check(during(server, played, lambda: server.kill(host, signal.SIGSTOP)), texts)
        client = server.opened()
        os.kill(server.pid, signal.SIGINT)
        os.kill(server.pid, signal.SIGINT)
        server.until(lambda: not server.left())
        client.close()


def test_the_engine_of_one_process_cannot_be_restarted_alone(one: FrontEnds) -> None:
    with one.http as http:
        answer = http.post("/admin/engine/restart")
        assert answer.status_code == 409
        assert "--front-ends" in answer.text
