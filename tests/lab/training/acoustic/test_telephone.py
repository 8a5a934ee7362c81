"""Telephone line in training: what a network learns from equals what a server receives from a caller."""

import numpy as np
import pytest
import soxr
import torch

from model.audio.mel import mel_filters
from model.recordings import read_manifest
from model.torch_network.network import LogMel, Network
from server.audio.pcm import Resampler
from server.audio.raw import alaw_table, mulaw_table
from server.tools.evaluate import coded
from tests.support.training.tones import PLAIN, RATE, TINY, recipe, write_tones
from tutti_asr_lab.training.acoustic.augment import Augmentation, Augmenter, to_tensor
from tutti_asr_lab.training.acoustic.data.batches import BatchMaker
from tutti_asr_lab.training.acoustic.data.corpus import Corpus
from tutti_asr_lab.training.acoustic.data.epoch import Item
from tutti_asr_lab.training.acoustic.losses.distillation import Teachers
from tutti_asr_lab.training.acoustic.objective import Objective
from tutti_asr_lab.training.acoustic.telephone import (
    LAWS,
    LINE_RATE_HZ,
    band_pass,
    code_values,
    companded,
    through_line,
)

TABLES = {"mulaw": mulaw_table, "alaw": alaw_table}
CALLS = Augmentation(speed=0, room=0, noise=0, telephone=1, lead_s=0.0, frequency_masks=0, time_masks=0)


def speech_like():
    """Two seconds of noise of changing level, as float PCM."""
    drawn = np.random.default_rng(0)
    level = 0.05 * (1 + np.sin(2 * np.pi * 3 * np.arange(2 * RATE) / RATE))
    return (level * drawn.standard_normal(2 * RATE)).astype(np.float32)


@pytest.mark.parametrize("law", LAWS)
def test_the_codes_are_those_of_the_server(law):
    table = TABLES[law]()
    assert np.array_equal(code_values(law), np.unique(table))
    pcm = np.arange(-32_768, 32_768, 7, dtype=np.int16)
    ours, theirs = companded(pcm.astype(np.float32), law), table[coded(pcm, table)]
    assert np.array_equal(abs(ours - pcm), abs(theirs - pcm.astype(np.float32))), "equally near; ties may differ"


@pytest.mark.parametrize("law", LAWS)
def test_a_line_gives_the_features_that_a_server_computes_from_a_call(law):
    pcm, table, features = speech_like(), TABLES[law](), LogMel(TINY, mel_filters(TINY))
    call = np.rint(soxr.resample(pcm, RATE, LINE_RATE_HZ, quality="HQ") * 32_768).astype(np.int16)
    resampler = Resampler(LINE_RATE_HZ, RATE)
    decoded = table[coded(call, table)]
    served = np.concatenate([resampler.resample(decoded), resampler.flush()])[: len(pcm)]
    learned = to_tensor(through_line(pcm, RATE, law, None)).numpy()
    ours, theirs = (features.log_mel(torch.from_numpy(x / np.float32(32_768))[None])[0] for x in (learned, served))
    assert (ours - theirs).abs().mean() < 0.1
    for energies in (ours, theirs):
        assert energies[:, -18:].max() < -12.5, "above 4.2 kHz is nothing but the rounding of samples"


def test_a_band_keeps_what_is_inside_and_removes_what_is_outside():
    time = np.arange(LINE_RATE_HZ) / LINE_RATE_HZ
    for hz, kept in ((100, 0.0), (200, 0.0), (1_000, 1.0), (3_200, 1.0), (3_800, 0.0)):
        tone = np.sin(2 * np.pi * hz * time).astype(np.float32)
        passed = band_pass(tone, LINE_RATE_HZ, 300.0, 3_400.0)
        assert np.std(passed) / np.std(tone) == pytest.approx(kept, abs=0.01)


def test_only_the_drawn_share_passes_through_a_line_and_lengths_stay():
    augmenter = Augmenter(Augmentation(telephone=0.5), [], [], RATE)
    rng, pcm = np.random.default_rng(1), speech_like()[:12_345]
    sent = [augmenter.transmit(pcm, rng) for _ in range(200)]
    assert 70 < sum(each is not pcm for each in sent) < 130
    assert {len(each) for each in sent} == {len(pcm)}
    assert len({each.tobytes() for each in sent}) > 50, "bands differ"
    assert not len(augmenter.transmit(pcm[:0], rng))


def test_teachers_get_the_audio_before_the_line(tmp_path):
    corpus = Corpus(read_manifest(write_tones(tmp_path) / "tones.jsonl"), tmp_path / "cache", RATE)
    items = [Item((0,)), Item((1,))]
    called, plain = (
        BatchMaker(TINY, corpus, Augmenter(each, [], [], RATE), 1).make(items, (0, 0)) for each in (CALLS, PLAIN)
    )
    assert not torch.equal(called.pcm, called.recorded)
    assert torch.equal(plain.pcm, plain.recorded)
    network = Network(TINY)
    chosen = recipe(distillation=1.0, augmentation=PLAIN)
    objective = Objective(network, chosen, "fp32", [[[1]]], Teachers([network], torch.device("cpu")))
    with torch.no_grad():
        features, _ = network.features(called.recorded, network.fresh_state(2)["pcm"])
        line, _ = network.features(called.pcm, network.fresh_state(2)["pcm"])
        wide = objective(features, called, np.random.default_rng(0), 0).total
        narrow = objective(line, called, np.random.default_rng(0), 0).total
    assert float(wide) == pytest.approx(0, abs=1e-3), "a teacher agrees with itself on the same audio"
    assert float(narrow) > 0.01
