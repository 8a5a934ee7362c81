"""Operations of an update equal those that torch counts; the share of the peak is reported and below one."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from model.recordings import read_manifest
from model.torch_network.network import Network
from tests.support.training.tones import RATE, TINY, recipe, write_tones
from tutti_asr_lab.training.acoustic.curves import figures
from tutti_asr_lab.training.acoustic.data.corpus import Corpus
from tutti_asr_lab.training.acoustic.efficiency import flops_of, flops_of_muon, product_peak
from tutti_asr_lab.training.acoustic.optimizer.muon import Muon
from tutti_asr_lab.training.acoustic.parallel.team import Team
from tutti_asr_lab.training.acoustic.run import Places, train
from tutti_asr_lab.training.acoustic.trainer import Trainer

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tones(tmp_path_factory.mktemp("tones"))


def test_the_operations_of_forward_and_backward_are_those_that_torch_counts():
    network, rows, frames = Network(TINY), 3, 20
    features = torch.randn(rows, 4 * frames, TINY.mel_bins)
    with FlopCounterMode(display=False) as counted:
        outputs, _ = network.encode(features, network.fresh_state(rows))
    assert flops_of(TINY, rows, frames, training=False) == counted.get_total_flops()
    with FlopCounterMode(display=False) as counted:
        network.encode(features, network.fresh_state(rows))[0].sum().backward()
    assert flops_of(TINY, rows, frames) == counted.get_total_flops()
    assert outputs.shape[:2] == (rows, frames)


def test_the_operations_of_muon_are_those_that_torch_counts():
    matrices = [torch.nn.Parameter(torch.randn(shape)) for shape in ((96, 40), (40, 96))]
    for matrix in matrices:
        matrix.grad = torch.randn_like(matrix)
    with FlopCounterMode(display=False) as counted:
        Muon(matrices, 0.0, torch.float32, Team()).step(0.1)
    assert flops_of_muon([matrix.shape for matrix in matrices]) == counted.get_total_flops()


def test_an_update_reports_the_operations_of_all_its_products(folder, monkeypatch):
    corpus = Corpus(read_manifest(folder / "tones.jsonl"), folder / "cache", RATE)
    chosen = recipe(updates=1, micro_batches=2, micro_batch_s=10.0)
    trainer = Trainer(TINY, chosen, corpus, [], CPU)
    trainer.fit_features()
    filters = []  # operations of the features, which do not count
    log_mel = trainer.network.features.log_mel

    def counted_apart(pcm):
        with FlopCounterMode(display=False) as counted:
            found = log_mel(pcm)
        filters.append(counted.get_total_flops())
        return found

    monkeypatch.setattr(trainer.network.features, "log_mel", counted_apart)
    with FlopCounterMode(display=False) as counted:
        (progress,) = trainer.run()
    assert progress.flops == pytest.approx(counted.get_total_flops() - sum(filters), rel=1e-6)


def test_a_run_reports_its_share_of_the_peak(folder, tmp_path):
    lines = []
    out = tmp_path / "tiny.safetensors"
    places = Places([folder / "tones.jsonl"], [], [], out, folder / "cache")
    train(TINY, recipe(updates=3), places, processes=1, device="cpu", announce=lines.append)
    (row,) = figures.read(out.with_suffix(".csv"))
    assert 0 < row["share_of_peak"] < 1
    assert row["gflops"] > 0
    assert any(f"{row['share_of_peak']:.1%} of peak" in line for line in lines)
    assert any(line.startswith("peak of the products") for line in lines)


def test_the_measured_peak_is_that_of_a_product():
    assert 1e8 < product_peak("fp32", CPU) < 1e13
