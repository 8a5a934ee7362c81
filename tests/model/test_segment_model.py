"""The model of whole segments: a streaming network at first, then one to which a segment's end tells of its start."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from small_networks import SMALL, noise, small_network
from torch import Tensor

from model import checkpoint
from model.errors import CheckpointError
from model.segment_model import SegmentModel, reader_for, save
from model.torch_network.segment_network import SegmentNetwork

ABOVE_SMALL = dataclasses.replace(SMALL, bidirectional_layers=2)


def grown(*, learned: bool = True) -> SegmentNetwork:
    """A network above `small_network`, whose layers say something if they have `learned`."""
    torch.manual_seed(3)
    network = SegmentNetwork(ABOVE_SMALL)
    network.load_state_dict({**network.state_dict(), **small_network().state_dict()})
    if learned:
        with torch.no_grad():
            for parameter in network.both_ways.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
    return network.eval()


@torch.no_grad()
def outputs(network: torch.nn.Module, pcm: Tensor) -> Tensor:
    found: Tensor = network(pcm, network.fresh_state(len(pcm)))[0]  # type: ignore[operator]
    return found


@pytest.fixture
def pcm() -> Tensor:
    return torch.from_numpy(np.stack(noise()))[:, : 20 * SMALL.step_samples]


@pytest.fixture
def shipped(tmp_path: Path) -> Path:
    """The file of a network above `trunk.safetensors`, which lies beside it."""
    checkpoint.save(small_network(), tmp_path / "trunk.safetensors")
    save(grown(), str(tmp_path / "trunk.safetensors"), tmp_path / "above.safetensors")
    return tmp_path / "above.safetensors"


def test_it_begins_as_the_streaming_network(pcm: Tensor) -> None:
    torch.testing.assert_close(outputs(grown(learned=False), pcm), outputs(small_network(), pcm), rtol=1e-4, atol=1e-4)


def test_what_comes_later_counts(pcm: Tensor) -> None:
    """A streaming network's first frames know nothing of the second half."""
    other, frames = pcm.clone(), 10
    other[:, 10 * SMALL.step_samples :] = 0
    for network, differs in ((small_network(), False), (grown(), True)):
        first, changed = outputs(network, pcm)[:, :frames], outputs(network, other)[:, :frames]
        assert torch.equal(first, changed) is not differs


def test_its_file_has_what_is_above_and_reads_as_it_did(shipped: Path, pcm: Tensor) -> None:
    model, network = SegmentModel.load(shipped), grown()
    assert shipped.stat().st_size < (shipped.parent / "trunk.safetensors").stat().st_size
    rows = model.read(pcm[0].numpy())
    assert rows.shape == (pcm.shape[1] // SMALL.frame_samples - SMALL.lookahead, SMALL.outputs)
    expected = outputs(network, pcm[:1])[0, SMALL.lookahead :].numpy()
    assert np.abs(np.exp(rows) - np.exp(expected)).max() < 0.02, "rounding to 8 bits"


def test_a_segment_reads_the_same_again(shipped: Path, pcm: Tensor) -> None:
    model = SegmentModel.load(shipped)
    first = model.read(pcm[0].numpy())
    model.read(pcm[1, : 5 * SMALL.step_samples].numpy())
    assert np.array_equal(model.read(pcm[0].numpy()), first)


def test_another_trunk_is_refused_when_it_is_written_and_when_it_is_read(shipped: Path) -> None:
    trunk = shipped.parent / "trunk.safetensors"
    checkpoint.save(small_network(seed=1), trunk)
    with pytest.raises(CheckpointError, match=r"stands on another trunk\.safetensors"):
        SegmentModel.load(shipped)
    with pytest.raises(CheckpointError, match="train with frozen_trunk"):
        save(grown(), str(trunk), shipped)


def test_a_streaming_model_of_other_symbols_or_delay_has_no_reader(shipped: Path) -> None:
    assert reader_for(SMALL, shipped.with_name("none.safetensors")) is None
    for changes in ({"lookahead": 5}, {"phones": ("a",)}, {"vocabulary": ("", "a")}):
        assert reader_for(dataclasses.replace(SMALL, **changes), shipped) is None
    reader = reader_for(SMALL, shipped)
    assert reader is not None
    assert reader.digest == SegmentModel.load(shipped).digest
    assert reader.read(np.zeros(20 * SMALL.frame_samples, np.int16)).shape == (20 - SMALL.lookahead, SMALL.outputs)


def test_a_broken_file_is_named(shipped: Path) -> None:
    shipped.write_bytes(shipped.read_bytes()[:100])
    with pytest.raises(CheckpointError, match=r"above\.safetensors"):
        SegmentModel.load(shipped)


def test_configurations_of_before_have_no_such_layers(shipped: Path) -> None:
    described = json.loads(shipped.with_name("trunk.json").read_text())
    del described["bidirectional_layers"]
    shipped.with_name("trunk.json").write_text(json.dumps({**described, "format_version": 4}))
    assert checkpoint.outline(shipped.with_name("trunk.safetensors"))[0].bidirectional_layers == 0
