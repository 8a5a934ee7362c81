"""A real server under a few hundred hostile messages: other streams keep their texts, and nothing leaks."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from loadtest.generator.measures import LevelReport
from server.http import bounded_protocol
from server.streaming import connection, flow_control
from tests.support.clients.loadtest_bench import level_report as level
from tests.support.needs import need_ipv6
from tests.support.servers.live_server import LiveServer, transcript
from tests.support.servers.recognizers.spelling import spell
from tutti_asr_lab.trials.hostile.containers import broken
from tutti_asr_lab.trials.hostile.raw_connection import Act, End, Tally, perform
from tutti_asr_lab.trials.hostile.swarm import OF_KIND, Attack, Script, attack, target_at
from tutti_asr_lab.trials.leftovers import IdleFigures, judge_leftovers
from tutti_asr_lab.trials.scenarios.hostile import MEMORY_SHARE, Plan, errors_in, judge, total

Start = Callable[..., LiveServer]
KEY = "s3cret-k3y"
MESSAGES = 400
WORDS = ("one small step", "a giant leap", "for all of us")


def hostile_to(server: LiveServer, script: Script) -> Tally:
    tally = Tally()
    asyncio.run(attack(target_at(f"ws://{server.host}", KEY, tally), script, time.perf_counter))
    return tally


def test_a_server_with_an_ipv6_address_is_attacked_too(live_server: Start) -> None:
    need_ipv6()
    tally = hostile_to(live_server(host="::1", api_keys=[KEY]), Script(20, per_s=1_000.0, at_a_time=8, seed=0))
    assert tally.messages >= 20
    assert not tally.problems


def nothing_is_left(server: LiveServer) -> None:
    server.wait_idle()
    for _ in range(500):
        if not server.replica.guard.coordinator.quotas._open:
            break
        server.http.get("/healthz")
    assert not server.replica.guard.coordinator.quotas._open
    assert server.http.get("/readyz").status_code == 200


@pytest.fixture(autouse=True)
def short_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that do not read are dropped within the time of a test."""
    for module in (bounded_protocol, connection, flow_control):
        monkeypatch.setattr(module, "WRITE_TIMEOUT_S", 0.5)


def test_other_streams_keep_their_texts_and_nothing_leaks(live_server: Start, caplog: pytest.LogCaptureFixture) -> None:
    server = live_server(api_keys=[KEY], idle_timeout_s=20.0)  # longer than a round of attacks
    headers = {"Authorization": f"Token {KEY}"}
    with server.listen(headers) as first, server.listen(headers) as second:
        others = (first, second)
        for word, client in zip(WORDS, others, strict=False):
            client.send(spell(word))
        tallies = []
        for number in range(2):
            tallies.append(hostile_to(server, Script(MESSAGES // 2, per_s=1_000.0, at_a_time=8, seed=number)))
            for client in others:
                client.say("KeepAlive")
                client.send(spell(f" {WORDS[2]}"))
        for word, client in zip(WORDS, others, strict=False):
            assert transcript(client.finish()).split() == [*word.split(), *WORDS[2].split(), *WORDS[2].split()]
    nothing_is_left(server)
    assert sum(tally.messages for tally in tallies) >= MESSAGES
    for tally in tallies:
        assert not tally.problems
        assert not {status for status in tally.statuses if status >= 500}
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")]


@pytest.mark.parametrize(
    "chosen", [chosen for kind in OF_KIND.values() for chosen in kind], ids=lambda chosen: chosen.__name__
)
def test_each_attack_ends_without_a_problem(live_server: Start, chosen: Attack) -> None:
    server = live_server(api_keys=[KEY], idle_timeout_s=0.5)
    tally = Tally()

    async def play() -> None:
        target = target_at(f"ws://{server.host}", KEY, tally)
        for seed in range(3):
            rng = random.Random(seed)
            await perform(target, chosen(target, rng), rng)

    asyncio.run(play())
    assert tally.messages
    assert not tally.problems
    nothing_is_left(server)


def test_blind_frames_are_sent_without_an_answer(live_server: Start) -> None:
    tally = Tally()

    async def play() -> None:
        target = target_at(f"ws://{live_server().host}", KEY, tally)
        await perform(target, Act(b"", [b"x"] * 3, End.NONE, blind=True, messages=5), random.Random(1))

    asyncio.run(play())
    assert tally.messages == 1 + 3 * 5


def test_broken_containers_are_of_every_kind_and_reproducible() -> None:
    file, audio = b"fLaC" + bytes(5_000), bytes(range(256)) * 300
    made = [broken(file, audio, random.Random(seed)) for seed in range(400)]
    assert {content[:4] for content in made} >= {b"RIFF", b"RF64", b"fLaC", b"OggS", b"\x1a\x45\xdf\xa3"}
    assert made == [broken(file, audio, random.Random(seed)) for seed in range(400)]


def test_memory_may_grow_by_two_percent() -> None:
    before = IdleFigures(0, 0, 0, 5, 100.0)
    for memory_mib, met in ((102.0, True), (102.2, False)):
        found = judge_leftovers(before, IdleFigures(0, 0, 0, 5, memory_mib), memory_share=MEMORY_SHARE)
        assert [each.what for each in found if not each.met] == ([] if met else ["memory"])


SENT = Plan(messages=100, rounds=3)


@pytest.mark.parametrize(
    ("tally", "attacked", "errors", "missed"),
    [
        (Tally(100), level(0.0119), {}, []),
        (Tally(99), level(0.01), {}, ["messages and handshakes that were not sent"]),
        (Tally(100), level(0.013), {}, ["chunk latency p98 with hostile clients, relative to without"]),
        (Tally(100), level(0.01, mismatched=1), {}, ["transcripts that differ from those alone"]),
        (Tally(100), level(0.01, compared=0), {}, ["transcripts that were not compared"]),
        (Tally(100), level(0.01, failed=1), {}, ["streams that failed or were refused"]),
        (Tally(100, statuses={500: 1, 503: 9, 400: 9}), level(0.01), {}, ["responses with a server error status"]),
        (Tally(100, problems={"x": 1}), level(0.01), {}, ["attacks that did not end"]),
        (Tally(100), level(0.01), {"x": 1}, ["errors in the server's log"]),
    ],
)
def test_each_criterion_can_be_missed(
    tally: Tally, attacked: LevelReport, errors: dict[str, int], missed: list[str]
) -> None:
    assert [each.what for each in judge(SENT, tally, [level(0.01)], [attacked], errors) if not each.met] == missed


def test_the_median_of_the_rounds_is_judged_and_a_round_without_figures_is_missed() -> None:
    def share(*attacked: LevelReport) -> float | None:
        found = judge(SENT, Tally(100), [level(0.01)] * len(attacked), attacked, {})
        return next(each.found for each in found if "p98" in each.what)

    assert share(level(0.01), level(0.05), level(0.011)) == pytest.approx(1.1, rel=0.01)
    assert share(level(0.01), level(0.01, chunk_latency_ms=None)) is None


def test_messages_are_distributed_over_rounds_and_tallies_are_summed() -> None:
    assert [script.messages for script in SENT.scripts] == [1_000, 34, 34, 34]
    assert len({script.seed for script in SENT.scripts}) == 4
    added = total([Tally(3, statuses={400: 1}, problems={"x": 1}), Tally(4, statuses={400: 2, 401: 1})])
    assert (added.messages, added.statuses, added.problems) == (7, {400: 3, 401: 1}, {"x": 1})


def test_errors_in_the_log_are_counted(tmp_path: Path) -> None:
    rows = [
        {"level": "info", "event": "x"},
        {"level": "error", "event": "bad\nnews"},
        {"level": "error", "event": "bad"},
    ]
    (tmp_path / "log").write_text("\n".join(map(json.dumps, rows)) + "\nTraceback (most recent call last):\n")
    assert errors_in(tmp_path / "log") == {"bad": 2, "Traceback (most recent call last):": 1}
