"""A server with two engine hosts that serve: the same words, the loss of one, a restart, exact room, one drain."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator

import pytest
from websockets.exceptions import InvalidStatus

from loadtest.processes import Process
from tests.server.processes.test_server_of_processes import AT_ONCE_S, STREAM_S, check, during, model, texts_of
from tests.support.servers.front_ends import ENGINE_HOST, FRONT_END, FrontEnds, speech
from tutti_asr_lab.trials.streams import Audio, Outcome

ENGINES = ("--engines", "2", "--threads", "1")
LIMIT = 8


@pytest.fixture(scope="module")
def played() -> list[Audio]:
    return speech(6, STREAM_S)


@pytest.fixture(scope="module")
def texts(played: list[Audio]) -> dict[str, str]:
    """The words of each audio from a server of one process."""
    with FrontEnds(0) as server:
        return texts_of(server, played)


@pytest.fixture(scope="module")
def two() -> Iterator[FrontEnds]:
    """A server with two front ends, each with an engine host of its own, and a spare host; a drain is its last test."""
    with FrontEnds(2, *ENGINES, "--max-streams", str(LIMIT)) as server:
        server.until(lambda: len(server.processes(ENGINE_HOST)) == 3)
        yield server


def busy_s(process: Process) -> float:
    """Return the processor time of a process so far. Source: clock_getcpuclockid(3), on Linux."""
    return time.clock_gettime((~process.pid << 3) | 2)


def test_both_engines_compute_and_the_words_are_those_of_one_process(
    two: FrontEnds, played: list[Audio], texts: dict[str, str]
) -> None:
    hosts = two.processes(ENGINE_HOST)
    before = [busy_s(host) for host in hosts]
    check(asyncio.run(two.play(played)), texts)
    first, second, spare = (busy_s(host) - began for host, began in zip(hosts, before, strict=True))
    assert min(first, second) > 5 * spare
    assert min(first, second) > 0.3 * max(first, second), "each has half of the streams"


def test_the_batches_of_both_engines_are_counted_once(two: FrontEnds, played: list[Audio]) -> None:
    line = f'tutti_batch_rows_total{{model="{model(two)}"}}'
    before = two.metric(line)
    asyncio.run(two.play(played, realtime=False))
    steps = sum(len(audio.pcm) for audio in played) / 1_280
    assert steps <= two.metric(line) - before <= steps * 1.3


def test_a_killed_front_end_comes_back_at_the_engine_that_it_had(
    two: FrontEnds, played: list[Audio], texts: dict[str, str]
) -> None:
    hosts = two.processes(ENGINE_HOST)[:2]
    killed = two.processes(FRONT_END)[1]
    two.kill(killed)
    two.until(lambda: {killed.pid} != {each.pid for each in two.processes(FRONT_END)[1:]} != set())
    two.until(two.both_serve)
    before = [busy_s(host) for host in hosts]
    check(asyncio.run(two.play(played)), texts)
    first, second = (busy_s(host) - began for host, began in zip(hosts, before, strict=True))
    assert min(first, second) > 0.3 * max(first, second)


def test_a_killed_engine_is_a_pause_and_the_other_one_serves_on(
    two: FrontEnds, played: list[Audio], texts: dict[str, str]
) -> None:
    two.until(lambda: len(two.processes(ENGINE_HOST)) == 3)
    _, second, spare = two.processes(ENGINE_HOST)
    check(during(two, played, lambda: two.kill(second)), texts)
    two.until(lambda: len(two.processes(ENGINE_HOST)) == 3)
    assert busy_s(spare) > 0, "it serves"
    assert second.pid not in {process.pid for process in two.processes(ENGINE_HOST)}


def test_both_engines_killed_at_once_are_a_pause(two: FrontEnds, played: list[Audio], texts: dict[str, str]) -> None:
    two.until(lambda: len(two.processes(ENGINE_HOST)) == 3)
    used = [busy_s(host) for host in two.processes(ENGINE_HOST)]

    def kill() -> None:
        hosts = two.processes(ENGINE_HOST)
        for host in sorted(hosts, key=lambda each: used[hosts.index(each)])[-2:]:
            two.kill(host)

    check(during(two, played, kill), texts)
    two.until(lambda: len(two.processes(ENGINE_HOST)) == 3)


def test_a_restart_replaces_both(two: FrontEnds, played: list[Audio], texts: dict[str, str]) -> None:
    two.until(lambda: len(two.processes(ENGINE_HOST)) == 3)
    before = {process.pid for process in two.processes(ENGINE_HOST)}

    def restart() -> None:
        with two.http as http:
            assert http.post("/admin/engine/restart").status_code == 200

    check(during(two, played, restart, after_s=AT_ONCE_S), texts)
    two.until(lambda: not before & {process.pid for process in two.processes(ENGINE_HOST)})
    two.until(lambda: len(two.processes(ENGINE_HOST)) == 3)


def test_the_limit_of_streams_is_one_and_a_signal_drains_all(
    two: FrontEnds, played: list[Audio], texts: dict[str, str]
) -> None:
    def fill_and_drain() -> None:
        others = [two.opened() for _ in range(LIMIT - len(played))]
        with pytest.raises(InvalidStatus) as refused:
            two.opened()
        assert refused.value.response.status_code == 503
        for other in others:
            other.close()
        os.kill(two.pid, signal.SIGTERM)

    outcomes: list[Outcome] = during(two, played, fill_and_drain)
    check(outcomes, texts)
    two.until(lambda: not two.left())
