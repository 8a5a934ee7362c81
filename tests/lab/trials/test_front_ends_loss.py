"""Loss of a front end or the supervisor, and the balance of connections: what is judged, and short runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from loadtest.generator.measures import LevelReport
from tests.support.clients.loadtest_bench import level_report
from tutti_asr_lab.trials.__main__ import app
from tutti_asr_lab.trials.figures import figures
from tutti_asr_lab.trials.scenarios.front_ends import KilledFrontEnd, Server, judge
from tutti_asr_lab.trials.streams import Audio, Outcome, audios


@pytest.fixture(autouse=True)
def without_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    """No engine host is lost here, so servers start no spare one."""
    monkeypatch.setenv("TUTTI_ENGINE_SPARE", "false")


def run(folder: Path, *words: str) -> dict[str, Any]:
    found = CliRunner().invoke(app, ["front_ends", *words, "--folder", str(folder)])
    [path] = folder.glob("*.json")
    document: dict[str, Any] = msgspec.json.decode(path.read_bytes())
    assert found.exit_code == 0, document["bars"]
    return document


def test_connections_are_balanced_again_after_a_loss(tmp_path: Path) -> None:
    document = run(tmp_path, "--loss", "balance", "--front-ends", "2", "--streams", "40")
    assert [sum(counts) for counts in document["figures"]["connections"].values()] == [40, 40]
    assert "Connections of each front end after the loss: 20, 20." in (tmp_path / "front_ends_balance.md").read_text()


def test_without_its_supervisor_a_server_closes_its_streams_and_ends(tmp_path: Path) -> None:
    document = run(tmp_path, "--loss", "supervisor", "--front-ends", "1", "--streams", "2")
    by_name = {bar["what"]: bar["found"] for bar in document["bars"]}
    assert by_name["last stream closed"] > 1, "streams are drained, not cut"


def level(*p98_s: float, **changes: object) -> LevelReport:
    return level_report(*(p98_s or (0.010, 0.012)), **changes)


def killed(**changes: Any) -> KilledFrontEnd:
    [audio] = audios(1, 2.0, seed=1)
    resumed = Outcome(audio, "words", finished=True, connected_at=[0.0, 10.3], lost_at=[10.1])
    found: dict[str, Any] = {
        "killed_at": 10.0,
        "connections": 3,
        "slots_free_s": 0.5,
        "serves_s": 2.0,
        "outcomes": [resumed],
    }
    return KilledFrontEnd(Server("ws://127.0.0.1:1", 1), [audio], 1, **found | changes)


def missed(at: LevelReport, kill: KilledFrontEnd, text: str = "words") -> list[str]:
    texts = {outcome.audio.name: text for outcome in kill.outcomes}
    return [bar.what for bar in judge(at, figures(kill.outcomes, texts), kill) if not bar.met]


def test_streams_of_the_killed_front_end_may_be_lost_and_no_others() -> None:
    assert missed(level(failed=2), killed()) == []
    others = "streams of other front ends that were closed or failed"
    assert missed(level(failed=3), killed()) == [others]
    opening = {"closed with 1006 connection lost in the handshake": 1}
    assert missed(level(failed=3, problems=opening), killed()) == [], "it was on its way to the killed one"
    whole = Outcome(Audio("a", killed().audios[0].pcm), "words", finished=True)
    unnoticed = missed(level(), killed(outcomes=[whole]))
    assert unnoticed == ["kills that no stream noticed", "resumable streams connected again, p98"]


def test_every_consequence_of_a_kill_is_judged() -> None:
    late = Outcome(killed().audios[0], "words", finished=True, connected_at=[0.0, 11.0], lost_at=[10.1])
    cut = Outcome(killed().audios[0], "", connected_at=[0.0, 10.3], lost_at=[10.1])
    assert missed(level(), killed(), text="other") == ["transcripts that differ"]
    assert missed(level(mismatched=1), killed()) == ["transcripts that differ"]
    assert missed(level(), killed(outcomes=[late])) == ["resumable streams connected again, p98"]
    assert missed(level(), killed(outcomes=[cut])) == ["resumable streams that did not finish"]
    assert missed(level(), killed(slots_free_s=1.2)) == ["slots of the killed front end free"]
    assert missed(level(), killed(serves_s=None)) == ["another front end has a stream"]
    assert missed(level(), killed(fell=["tutti_steps_total"])) == ["counters that fell"]
    assert missed(level(0.010, 0.016), killed()) == ["p98 after the kill"]
