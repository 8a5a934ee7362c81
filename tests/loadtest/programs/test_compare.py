"""Comparison of policies or other options, and the servers started for it."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from loadtest import compare as compare_module
from loadtest import served as served_module
from loadtest.compare import Ceiling, Comparison, compare, markdown, table
from loadtest.errors import ServerNotReady
from loadtest.generator.measures import LevelMeasures, ServerFigures
from loadtest.measurement.report import Document
from loadtest.reports.environment import describe
from loadtest.served import served
from tests.support.clients.fake_listen import FakeListen, Plan
from tests.support.clients.loadtest_bench import T0, settings, write_manifest


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    return write_manifest(tmp_path)


def test_options_are_compared_in_one_table(
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
            ["beam", "greedy"],
            name="n",
            command="make bench",
            vary="decoder",
            serve_options=["--beams", "16"],
            folder=tmp_path / "results",
            ceiling=lambda: Ceiling({1: 1.5, 64: 10.0}, precision="bf16", threads=1, read_ns=141.2, in_caches=False),
        )
    assert code == 0
    assert started == [["--decoder", "beam", "--beams", "16"], ["--decoder", "greedy", "--beams", "16"]]
    out, err = capsys.readouterr()
    assert "batch 64: 10.00 ms, 512 streams" in err
    assert "a read of the weights: 141 ns, from memory, so steps are slow" in err
    kept = msgspec.json.decode((tmp_path / "results" / "n.json").read_bytes(), type=Comparison)
    assert msgspec.json.decode(out.splitlines()[-1], type=Comparison) == kept
    assert [row[:2] for row in table(kept)] == [("3", "beam"), ("3", "greedy")]
    assert table(kept)[0][5] == "1.0×"
    page = (tmp_path / "results" / "n.md").read_text()
    assert "| streams | decoder | p50 |" in page
    assert "| 3 | beam |" in page
    assert "`make bench`" in page
    assert (tmp_path / "results" / "n.png").is_file()


def test_a_comparison_without_a_ceiling_and_with_one_policy_has_a_page() -> None:
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


def test_a_started_server_is_polled_until_ready_and_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_module, "serve_command", lambda port, _: [sys.executable, "-c", READY, str(port)])
    with served([]) as url:
        port = int(url.rpartition(":")[2])
        assert served_module.is_ready(port)
    assert not served_module.is_ready(port)


def test_a_server_that_ends_at_once_is_reported_with_its_output(monkeypatch: pytest.MonkeyPatch) -> None:
    failing = [sys.executable, "-c", "print('no weights'); raise SystemExit(3)"]
    monkeypatch.setattr(served_module, "serve_command", lambda *_: failing)
    with pytest.raises(ServerNotReady, match=r"ended with 3:\nno weights"), served([]):
        pass
