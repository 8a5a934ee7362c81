"""Comparison with other servers: streams, search, rounds, report."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest import served
from loadtest.errors import BadManifest, BadSettings, PeerMissing, ServerNotReady
from loadtest.generator.answers import Answer, decode_answer
from loadtest.generator.latencies import Spread
from loadtest.generator.level import Schedule
from loadtest.reports.environment import describe
from tests.support.deployment.edge import wait_until
from tests.support.needs import need_package
from tutti_asr_lab import processes
from tutti_asr_lab.benchmarks.peers import bench
from tutti_asr_lab.benchmarks.peers.__main__ import read
from tutti_asr_lab.benchmarks.peers.bench import CLOSE, MOST, Search
from tutti_asr_lab.benchmarks.peers.contestants import ALL, DEFAULT, OURS, Findings, Probe, chosen
from tutti_asr_lab.benchmarks.peers.report import markdown, quantile, rows, write


def test_the_load_generator_can_decode_the_messages() -> None:
    peer = need_package("tutti_asr_lab.benchmarks.peers.sherpa_server")
    for at_s, last in ((0.5, False), (1.0, True)):
        answer = decode_answer(peer.results(at_s, "so far", is_final=last).encode())
        assert isinstance(answer, Answer)
        assert (answer.start + answer.duration, answer.is_final, answer.text) == (at_s, last, "so far")


@given(capacity=st.integers(1, MOST), first=st.integers(1, 400), factor=st.sampled_from([1.15, 1.5]))
def test_a_search_ends_near_the_capacity(capacity: int, first: int, factor: float) -> None:
    search = Search(first, factor=factor, levels=100)
    while (level := search.next_level()) is not None:
        search.add(level, sustained=level <= capacity)
    assert search.good <= capacity
    assert capacity + 1 <= max(search.good * CLOSE, search.good + 1) + 1 or search.good * factor > MOST


@pytest.mark.parametrize("capacity", [14, 10, 6, 3, 1])
def test_a_later_round_finds_a_capacity_far_below_that_of_the_earlier_one(capacity: int) -> None:
    search = Search(15, factor=bench.AGAIN, levels=bench.AGAIN_LEVELS)
    while (level := search.next_level()) is not None:
        search.add(level, sustained=level <= capacity)
    assert capacity / 2 <= search.good <= capacity


@given(st.lists(st.booleans(), min_size=8, max_size=8))
def test_a_search_is_bounded_for_any_results(outcomes: list[bool]) -> None:
    search, asked = Search(40), []
    for sustained in outcomes:
        level = search.next_level()
        if level is None:
            break
        asked.append(level)
        search.add(level, sustained=sustained)
    assert len(set(asked)) == len(asked) <= search.levels
    assert len(asked) < search.levels or search.next_level() is None


def spread(p98: float) -> Spread:
    return Spread(1.0, 2.0, 3.0, p98, p98, p98, 2.0, 100)


def probe(peer: str, number: int, streams: int, p98: float, **fields: object) -> Probe:
    return Probe(peer, number, streams, p98 <= 100.0, spread(p98), **fields)  # type: ignore[arg-type]


def findings(*probes: Probe) -> Findings:
    return Findings("command", 100.0, 8.0, 6.0, 10, {"onnx": "2"}, describe(1), probes)


MEASURED = findings(
    probe(OURS, 1, 10, 5.0, searched=False, cdf=((1.0, 0.5), (5.0, 1.0))),
    probe(OURS, 1, 400, 50.0, server_cores={"cli": 1.5}, compared=9),
    probe(OURS, 1, 600, 500.0),
    probe(OURS, 2, 500, 90.0),
    probe(OURS, 3, 440, 90.0),
    probe("sherpa-fp32", 1, 40, 30.0, batch_sizes={1: 10.0}, mismatched=1, compared=7),
    probe("sherpa-fp32", 1, 60, 900.0, batch_sizes={1: 10.0, 4: 10.0}),
    probe("sherpa-fp32", 1, 60, 900.0, batch_sizes={1: 9.0, 8: 11.0}),
    Probe("sherpa-int8", 1, 0, sustained=False, chunk_latency_ms=None, problem="it did not start\nand said why"),
)


def test_the_figure_of_a_server_is_the_median_of_its_rounds() -> None:
    assert MEASURED.by_round(OURS) == [400, 500, 440]
    assert MEASURED.sustained(OURS) == 440
    assert MEASURED.ratio("sherpa-fp32") == 11.0
    assert MEASURED.ratio("sherpa-int8") is None  # sustained no streams
    assert MEASURED.sustained("sherpa-2") is None
    edge = MEASURED.edge(OURS)
    assert edge is not None
    assert edge.streams == 440


def test_the_report_has_a_ratio_with_its_range_for_each_pair() -> None:
    published = findings(
        *(probe("tutti-published", number, streams, 90.0) for number, streams in enumerate((20, 24, 22), 1)),
        *(probe("sherpa-published", number, streams, 90.0) for number, streams in enumerate((10, 8, 11), 1)),
        *(probe("sherpa-published-int8-2", number, 20, 90.0) for number in (1, 2)),
    )
    assert published.ratios("tutti-published", "sherpa-published") == [2.0, 3.0, 2.0]
    assert published.ratios("tutti-published", "sherpa-published-int8-2") == [1.0, 1.2]
    assert published.ratios("tutti-published", "tutti") == []
    assert published.ratio("sherpa-published") == 2.2  # of the server with the same model
    lines = markdown(published, "peers.png").splitlines()
    assert "| tutti-published | – | 2.00 (2.00 to 3.00) | 1.10 (1.00 to 1.20) |" in lines
    assert "| sherpa-published | 0.50 (0.33 to 0.50) | – | 0.45 (0.40 to 0.50) |" in lines


def test_the_report_has_servers_criteria_and_problems() -> None:
    table = {row[0]: row for row in rows(MEASURED)}
    assert table["sherpa-onnx, fp32"][1:4] == ("40", "40", "11.0")
    assert table["tutti, greedy"][8] == "0 of 9"
    page = markdown(MEASURED, "peers.png")
    assert "- sherpa-int8, 0 streams: it did not start\n" in page
    assert "and said why" not in page
    assert "onnx 2" in page
    assert f"seed {MEASURED.environment.seed}" in page


def test_the_report_notes_if_no_stream_ended_and_no_text_was_compared() -> None:
    nothing = findings(probe(OURS, 1, 400, 50.0))
    assert rows(nothing)[0][8] == "–"
    assert "none ended" in markdown(nothing, "peers.png")
    assert "none ended" not in markdown(MEASURED, "peers.png")


def test_the_report_is_written_and_read_again(tmp_path: Path) -> None:
    document, page, picture = write(MEASURED, tmp_path, "peers")
    assert read(document) == MEASURED.probes
    assert page.read_text().startswith("# Live streams")
    assert picture.stat().st_size > 10_000
    assert read(tmp_path / "absent.json") == ()
    document.write_text("{}")
    with pytest.raises(BadManifest, match=r"peers\.json"):
        read(document)


def test_a_quantile_of_batch_sizes_counts_batches() -> None:
    sizes = {1: 6.0, 8: 3.0, 64: 1.0}
    assert [quantile(sizes, at) for at in (0.1, 0.5, 0.9, 1.0)] == [1, 1, 8, 64]


def test_unknown_and_uninstalled_peers_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [one.name for one in chosen("sherpa-fp32,tutti")] == ["sherpa-fp32", OURS]
    with pytest.raises(BadSettings, match="rya"):
        chosen("rya")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(PeerMissing, match="sherpa_onnx not installed: pip install"):
        chosen("sherpa-fp32")
    assert chosen(OURS)[0].name == OURS
    assert len({one.name for one in ALL}) == len(ALL)


class FakeServers:
    """Fake servers, each of which sustains the number of streams in `capacity`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **capacity: int) -> None:
        self.capacity, self.calls, self.rows = capacity, [], 0.0
        monkeypatch.setattr(served, "running", self.running)
        monkeypatch.setattr(bench, "RunningPeer", lambda *_: self)
        monkeypatch.setattr(bench, "measure", self.measure)

    @contextlib.contextmanager
    def running(self, command: tuple[str, ...], _: int):
        self.name = next(name for name in DEFAULT if command[2] in chosen(name)[0].command)
        if not self.capacity[self.name]:
            raise ServerNotReady("it did not start")
        yield SimpleNamespace(pid=0)

    url, cpu_by_name = "ws://127.0.0.1:1", Counter

    def batches(self) -> dict[int, float]:
        self.rows += 1.0
        return {4: self.rows}

    def measure(self, settings: object, *, progress: object, alongside: object) -> SimpleNamespace:
        (streams,) = settings.streams  # type: ignore[attr-defined]
        self.calls.append((self.name, streams))
        good = streams <= self.capacity[self.name]
        level = SimpleNamespace(
            streams=streams,
            chunk_latency_ms=spread(50.0 if good else 101.0),
            failed=0,
            refused=0,
            unanswered=0,
            compared=1,
            mismatched=0,
            generator_cpu_cores=0.1,
            server=SimpleNamespace(batch_sizes=None),
        )
        document = SimpleNamespace(levels=(level,), interrupted=False)
        return SimpleNamespace(document=document, cdfs=(((1.0, 1.0),),))


PLAN = bench.Plan(rounds=2, seconds=1.0, stream_s=1.0, objective_ms=100.0, common=10, seed=1, onnx=Path("onnx"))


def test_rounds_alternate_and_later_ones_start_at_the_earlier_result(monkeypatch: pytest.MonkeyPatch) -> None:
    servers = FakeServers(monkeypatch, tutti=500, **{"sherpa-fp32": 45})
    probes = list(bench.run(PLAN, chosen("tutti,sherpa-fp32"), (), lambda _: None))
    order = [name for n, (name, _) in enumerate(servers.calls) if n == 0 or servers.calls[n - 1][0] != name]
    assert order == ["tutti", "sherpa-fp32", "tutti", "sherpa-fp32"]
    for name, capacity in servers.capacity.items():
        rounds = findings(*probes).by_round(name)
        assert len(rounds) == 2
        assert all(capacity / 1.1 <= streams <= capacity for streams in rounds)
        second = [p for p in probes if p.peer == name and p.round == 2]
        assert second[0].streams == rounds[0]
        assert len(second) <= bench.AGAIN_LEVELS
    (common, *_) = [p for p in probes if p.peer == "tutti"]
    assert (common.streams, common.searched, common.cdf) == (10, False, ((1.0, 1.0),))
    assert common.batch_sizes == {4: 1.0}  # of this level only


def test_a_server_that_does_not_start_is_reported_and_the_others_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeServers(monkeypatch, tutti=0, **{"sherpa-fp32": 45})
    probes = list(bench.run(PLAN, chosen("tutti,sherpa-fp32"), (), lambda _: None))
    assert [p.problem for p in probes if p.peer == "tutti"] == ["it did not start"] * 2
    assert findings(*probes).sustained("sherpa-fp32")


def test_kept_levels_count_as_earlier_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    servers = FakeServers(monkeypatch, **{"sherpa-fp32": 45})
    kept = (probe("sherpa-fp32", 1, 44, 50.0),)
    probes = list(bench.run(PLAN, chosen("sherpa-fp32"), kept, lambda _: None))
    assert {p.round for p in probes} == {2, 3}
    assert servers.calls[0] == ("sherpa-fp32", 44)


@pytest.mark.parametrize("fault", ["failed", "refused", "unanswered"])
def test_a_level_with_losses_is_not_sustained(fault: str) -> None:
    level = SimpleNamespace(chunk_latency_ms=spread(99.0), failed=0, refused=0, unanswered=0)
    assert bench.sustained(level, 100.0)  # type: ignore[arg-type]
    assert not bench.sustained(level, 98.0)  # type: ignore[arg-type]
    setattr(level, fault, 1)
    assert not bench.sustained(level, 100.0)  # type: ignore[arg-type]


STUBBORN = """
import signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.run([sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"])
"""


def test_a_server_is_stopped_with_all_its_child_processes(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w+b") as output:
        server = served.start([sys.executable, "-c", STUBBORN], output)
        wait_until(lambda: (tmp_path / "out").read_bytes() == b"up\n")
        pids = [process.pid for process in processes.tree(server.pid)]
        assert (pids[0], len(pids)) == (server.pid, 2)
        assert sum(processes.cpu_by_name(processes.tree(os.getpid())).values()) > 0.0
        served.stop(server, within_s=0.1)
    wait_until(lambda: not any(command_of(pid) for pid in pids))


def command_of(pid: int) -> bytes:
    """Return the command line of a process, nothing once it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def test_a_server_that_ends_at_once_is_reported_with_its_last_output() -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('no weights here')"]
    with pytest.raises(ServerNotReady, match=r"(?s)ended with 1.*no weights here"), served.running(command, 1):
        pass


def test_processor_time_is_that_of_the_measured_window_alone() -> None:
    """An overloaded server computes on after the level, which made two cores look like four."""
    times = iter([Counter(server=3.0), Counter(server=4.8)])
    spent = bench.CpuOfLevel(SimpleNamespace(cpu_by_name=lambda: next(times)))  # type: ignore[arg-type]
    now = time.perf_counter()
    asyncio.run(spent.run(Schedule(now, now, now, 0.0)))
    assert spent.cores(1.0) == {"server": round(1.8 / (1.0 - bench.END_EARLIER_S), 3)}
