"""Averaging of the weights of several checkpoints."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from model import checkpoint
from model.config import ModelConfig
from model.errors import CheckpointError
from model.torch_network.checkpoint import load_network, save_network
from model.torch_network.network import Network
from tests.support.networks.small_networks import SMALL
from tutti_asr_lab.training.acoustic.averaging import main, mean


def put(path: Path, seed: int, config: ModelConfig = SMALL) -> Path:
    torch.manual_seed(seed)
    save_network(Network(config), path)
    return path


def test_each_weight_is_the_weighted_mean(tmp_path: Path) -> None:
    paths = [put(tmp_path / f"{seed}.safetensors", seed) for seed in (1, 2)]
    one, two = (load_network(path)[0].state_dict() for path in paths)
    found = mean(paths, [1.0, 3.0]).state_dict()
    for name, weight in found.items():
        torch.testing.assert_close(weight, 0.25 * one[name] + 0.75 * two[name])
    assert not torch.equal(found["head.weight"], one["head.weight"])


def test_the_training_record_names_the_averaged_files(tmp_path: Path) -> None:
    paths = [put(tmp_path / f"{seed}.safetensors", seed) for seed in (1, 2)]
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]
    assert mean(paths, [1.0, 3.0]).config.training["mean_of"] == [
        {"sha256": digests[0], "share": 0.25},
        {"sha256": digests[1], "share": 0.75},
    ]


def test_quantized_weights_count_as_floats() -> None:
    shipped = checkpoint.named(Path("tutti-gru"))
    found, floats = mean([shipped, shipped], [1.0, 1.0]).state_dict(), load_network(shipped)[0].state_dict()
    assert all(torch.equal(found[name], floats[name]) for name in floats)


@pytest.mark.parametrize("other", [{"hidden": 24}, {"phones": ("a", "b")}, {"vocabulary": ("", "a", "b")}])
def test_checkpoints_of_other_shapes_or_symbols_are_refused(tmp_path: Path, other: dict[str, object]) -> None:
    paths = [put(tmp_path / "a.safetensors", 1), put(tmp_path / "b.safetensors", 2, replace(SMALL, **other))]
    with pytest.raises(CheckpointError, match=r"a\.safetensors and .*b\.safetensors differ"):
        mean(paths, [1.0, 1.0])


def test_the_command_writes_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [put(tmp_path / f"{seed}.safetensors", seed) for seed in (1, 2)]
    out = tmp_path / "mean.safetensors"
    monkeypatch.setattr(sys, "argv", ["averaging", *map(str, paths), "--shares", "1", "3", "--out", str(out)])
    main()
    written = load_network(out)[0].state_dict()
    torch.testing.assert_close(written["head.weight"], mean(paths, [1.0, 3.0]).state_dict()["head.weight"])
    monkeypatch.setattr(sys, "argv", ["averaging", *map(str, paths), "--shares", "1", "--out", str(out)])
    with pytest.raises(SystemExit):
        main()
