"""Several processes train one network: the mean gradient, the same weights everywhere, a tidy common end."""

import json
from functools import partial
from pathlib import Path
from threading import Event

import numpy as np
import pytest
import soundfile
import torch

from model import checkpoint
from model.config import ModelConfig
from model.training import parallel
from model.training.parallel import Team
from model.training.recipe import Recipe
from model.training.run import Places, train

TINY = ModelConfig(name="tiny", conv_channels=32, hidden=64, layers=1, lookahead=2)


def _average(folder: Path, team: Team) -> None:
    parameter = torch.nn.Parameter(torch.zeros(2, 3))
    parameter.grad = torch.full((2, 3), float(team.rank))
    unused = torch.nn.Parameter(torch.zeros(1))
    figures = team.mean([parameter, unused], [10.0 * team.rank, 1.0])
    found = [parameter.grad.tolist(), figures]
    (folder / f"{team.rank}.json").write_text(json.dumps(found))


def _stop(folder: Path, team: Team) -> None:
    assert isinstance(team.asked_to_stop, Event)
    if team.rank == 1:
        team.asked_to_stop.set()
    try:
        team.mean([torch.nn.Parameter(torch.zeros(1))], [0.0])
    except KeyboardInterrupt:
        (folder / f"{team.rank}").touch()
        raise


def _break(team: Team) -> None:
    raise ValueError(f"process {team.rank} broke")


def test_gradients_and_figures_are_averaged_in_every_process(tmp_path):
    parallel.run(2, partial(_average, tmp_path))
    for rank in range(2):
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == [[[0.5] * 3] * 2, [5.0, 1.0]]


def test_all_processes_stop_at_the_same_update_when_one_is_interrupted(tmp_path):
    parallel.run(2, partial(_stop, tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


def test_an_error_in_a_process_ends_the_run():
    with pytest.raises(Exception, match=r"process [01] broke"):
        parallel.run(2, _break)


@pytest.fixture(scope="module")
def noises(tmp_path_factory):
    folder = tmp_path_factory.mktemp("noises")
    rng = np.random.default_rng(0)
    rows = []
    for number in range(24):
        soundfile.write(folder / f"{number}.flac", rng.uniform(-0.3, 0.3, 8_000), 16_000)
        rows.append({"audio": f"{number}.flac", "text": "abc"[number % 3], "duration": 0.5})
    (folder / "noises.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    return folder


def test_two_processes_give_the_same_weights_each_run_and_others_than_one_process(noises, tmp_path):
    def weights(name, processes):
        out = tmp_path / f"{name}.safetensors"
        places = Places([noises / "noises.jsonl"], [], [], out, noises / "cache")
        recipe = Recipe(updates=3, batch_s=4.0, warmup=1, dropout=0.1, processes=processes)
        train(TINY, recipe, places, device="cpu", announce=print)
        network, _ = checkpoint.load(out)
        return network.state_dict()

    one, again, alone = weights("one", 2), weights("again", 2), weights("alone", 1)
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(one["head.weight"], alone["head.weight"])
