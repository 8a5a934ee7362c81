"""Phones as a second target: espeak-ng's pronunciations, and the head on a middle layer."""

import pytest
import torch
from needs import need_programs

from model.config import ModelConfig
from model.errors import TrainingError
from model.network import Network
from model.training import phones
from model.training.phones import PhoneHead, Pronunciations

TINY = ModelConfig(name="tiny", conv_channels=32, hidden=64, layers=2, lookahead=2)


def test_words_that_sound_alike_have_the_same_phones_and_others_differ():
    need_programs("espeak-ng")
    spoken = Pronunciations.of(["to sea", "two see", "don't"])
    assert spoken.target("two see") == spoken.target("to sea")
    assert spoken.target("see") != spoken.target("don't")
    assert all(1 <= phone <= len(spoken.phones) for phone in spoken.target("two see don't"))


def test_a_missing_espeak_is_named_in_the_error(monkeypatch):
    monkeypatch.setattr(phones, "SPEAK", ("no-such-program",))
    with pytest.raises(TrainingError, match="espeak-ng"):
        Pronunciations.of(["a word"])


def test_the_phone_head_reads_what_the_last_layer_reads_and_only_in_training():
    network = Network(TINY).train()
    head = PhoneHead(network, phones=5)
    features = torch.randn(3, 8, TINY.mel_bins)
    network.encode(features, network.fresh_state(3))
    logits = head.logits()
    assert logits.shape == (3, 2, 6)
    logits.sum().backward()
    assert network.grus[0].input.weight.grad is not None
    assert network.grus[1].input.weight.grad is None
    network.eval()
    network.encode(features, network.fresh_state(3))
    with pytest.raises(ValueError, match="unpack"):
        head.logits()
