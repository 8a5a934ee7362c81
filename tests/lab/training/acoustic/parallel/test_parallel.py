"""Several processes: the same sums and gathered parts for any number of them, and a common end."""

import json
import os
import signal
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event

import pytest
import torch

from model.errors import TrainingError
from tutti_asr_lab.training.acoustic.parallel import launch
from tutti_asr_lab.training.acoustic.parallel.all_reduce import TreeSum
from tutti_asr_lab.training.acoustic.parallel.heartbeat import ANSWERED_S, BEAT_S, EXIT_SILENT, Heartbeat
from tutti_asr_lab.training.acoustic.parallel.launch import Place, processes_for
from tutti_asr_lab.training.acoustic.parallel.placement import Location
from tutti_asr_lab.training.acoustic.parallel.team import Team


def leaves(number: int) -> list[torch.Tensor]:
    """Floats whose sum depends on the order of addition."""
    generator = torch.Generator().manual_seed(number)
    return [torch.randn(501, generator=generator) * 10.0 ** (i % 7 - 3) for i in range(number)]


def tree_sum(buffers):
    tree = TreeSum()
    for buffer in buffers:
        tree.add(buffer.clone())
    return tree.total()


@pytest.mark.parametrize("wrong", [3, 8, 0])
def test_a_number_of_processes_that_cannot_share_an_update_is_refused(wrong):
    with pytest.raises(TrainingError, match="use 1, 2, 4"):
        processes_for(wrong, 4, 64)


def test_the_default_is_the_largest_possible_number_of_processes():
    assert [processes_for(None, 4, available) for available in (1, 2, 3, 4, 64)] == [1, 2, 2, 4, 4]


def test_the_rank_is_read_from_torchruns_variables():
    said = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
    assert Place.of(said) == Place(5, 8, 1, "node0")
    assert Place.of({"HOME": "/"}) is None


def _share(folder: Path, team: Team, _: object) -> bool:
    share = 8 // team.size
    total = team.sum(tree_sum(leaves(8)[team.rank * share : (team.rank + 1) * share]))
    joined = torch.zeros(10, dtype=torch.bfloat16)
    bounds = [10 * rank // team.size for rank in range(team.size + 1)]
    joined[bounds[team.rank] : bounds[team.rank + 1]] = torch.arange(10)[bounds[team.rank] : bounds[team.rank + 1]]
    team.gather(joined, bounds)
    given = team.broadcast(b"of the last" if team.rank == team.size - 1 else None, team.size - 1)
    halved = replace(team, halving_from=0).sum(tree_sum(leaves(8)[team.rank * share : (team.rank + 1) * share]))
    same = torch.equal(total, tree_sum(leaves(8))) and torch.equal(halved, total)
    found = [same, joined.tolist(), team.objects(team.rank), given.decode()]
    (folder / f"{team.rank}.json").write_text(json.dumps([*found, torch.get_num_threads()]))
    return False


@pytest.mark.parametrize("processes", [1, 4])
def test_sums_gathered_parts_and_objects_are_the_same_in_every_process_and_each_has_one_thread(tmp_path, processes):
    before = torch.get_num_threads()
    launch.run(processes, partial(_share, tmp_path))
    assert torch.get_num_threads() == before
    expected = [True, [float(i) for i in range(10)], list(range(processes)), "of the last", 1]
    for rank in range(processes):
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == expected


def _in_turn(folder: Path, team: Team, stop: object) -> bool:
    """Place the processes as if they had been dealt out to two machines in turn, then do as `_share`."""
    place = Location(f"node{team.rank % 2}", team.rank // 2, (0,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Location, "here", lambda _: place)
        placed = team.placed()
    assert placed.locations[placed.rank] == place
    return _share(folder, placed, stop)


def test_processes_that_were_renumbered_by_machine_give_the_same_sums_parts_and_objects(tmp_path):
    launch.run(4, partial(_in_turn, tmp_path))
    for rank in range(4):
        expected = [True, [float(i) for i in range(10)], [0, 1, 2, 3], "of the last", 1]
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == expected


def _chosen(folder: Path, team: Team, _: object) -> bool:
    chosen = team.measured(1 << 19)
    (folder / f"{team.rank}.json").write_text(json.dumps([chosen.halving_from, len(team.locations)]))
    return False


def test_all_processes_choose_the_same_size_for_halving(tmp_path):
    launch.run(4, partial(_chosen, tmp_path))
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)]
    assert found == [found[0]] * 4
    assert found[0][0] in (None, 1 << 14, 1 << 18, 1 << 19)
    assert found[0][1] == 4


def _stop(folder: Path, team: Team, stop: launch.Event) -> bool:
    if team.rank == 1:
        signal.raise_signal(signal.SIGTERM)
    asked = any(team.objects(stop.is_set()))
    (folder / f"{team.rank}").touch()
    return asked


class _Early:
    """Work that is interrupted when a process reads it, before `interruptible`, as by Ctrl-C while it imports."""

    def __getstate__(self) -> int:
        return signal.SIGINT

    def __setstate__(self, number: int) -> None:
        signal.raise_signal(number)

    def __call__(self, team: Team, stop: launch.Event) -> bool:
        return all(team.objects(stop.is_set()))


def _stop_twice(team: Team, _: object) -> bool:
    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)
    return False


def _break(team: Team, _: object) -> bool:
    raise ValueError(f"process {team.rank} broke")


def _refuse(team: Team, _: object) -> bool:
    raise TrainingError(f"nothing to do: {team.size} processes")


def _die(how: int, team: Team, _: object) -> bool:
    team.objects(None)
    if team.rank == 1:
        os.kill(os.getpid(), how)
    team.sum(torch.zeros(3))
    return False


def test_an_interruption_of_one_process_interrupts_the_run_after_all_have_ended(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        launch.run(2, partial(_stop, tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


@pytest.mark.parametrize("work", [_Early(), _stop_twice])
def test_an_interruption_before_the_start_or_a_second_one_is_an_interruption(work, capfd):
    with pytest.raises(KeyboardInterrupt):
        launch.run(2, work)
    assert "Traceback" not in capfd.readouterr().err


def test_an_error_in_a_process_ends_the_run():
    with pytest.raises(Exception, match=r"process [01] broke"):
        launch.run(2, _break)


def test_an_operators_mistake_is_reported_without_a_traceback():
    with pytest.raises(TrainingError, match=r"^nothing to do: 2 processes$"):
        launch.run(2, _refuse)


def test_a_killed_process_ends_the_run():
    with pytest.raises(TrainingError, match="process"):
        launch.run(2, partial(_die, signal.SIGKILL))


def test_a_stopped_process_ends_the_others_within_ten_seconds():
    """SIGSTOP keeps the connections open without any data."""
    with pytest.raises(TrainingError, match=f"exit code {EXIT_SILENT}"):
        launch.run(2, partial(_die, signal.SIGSTOP))


def test_no_thread_is_inside_the_store_after_a_successful_run_has_stopped_its_heartbeat(monkeypatch):
    """On a busy machine the store answers late; a thread inside it at the end would abort the process."""
    heartbeat, asked = Heartbeat(0, 2, "127.0.0.1"), Event()

    class Late:
        def add(self, _key, _count):
            asked.set()
            time.sleep(BEAT_S * 1.5)
            return 0

    monkeypatch.setattr(heartbeat, "_store", Late())
    heartbeat.start()
    assert asked.wait(BEAT_S)
    heartbeat.stop(ANSWERED_S)
    assert not any(thread.is_alive() for thread in heartbeat._threads)
