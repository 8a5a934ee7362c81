"""Accurate finals by the served network itself: of the stream's outputs, or of the whole segment."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model import checkpoint, segment_model
from model.acoustic import load_own, log_probs_of
from model.attention.checkpoint import AttentionModel
from model.ctc.interface import FrameAudio
from model.decoder import decoder_of, grammars_of, second_passes_of
from model.errors import CheckpointError
from model.facts import AcousticModel, ModelFacts
from model.recordings import PCM, read_pcm
from model.segment_model import reader_for
from server.settings import Settings
from server.tools.evaluate import evaluate
from server.tools.local import open_local
from tests.support.audio.speech import samples

SAMPLE = checkpoint.WEIGHTS.parent / "samples" / "demo.flac"


@pytest.fixture(scope="module")
def gru() -> AcousticModel:
    return load_own(checkpoint.GRU, device="cpu", precision="int8")


@pytest.fixture(scope="module")
def model() -> AttentionModel:
    loaded = load_own()
    assert isinstance(loaded, AttentionModel)
    return loaded


@pytest.fixture(scope="module")
def speech(model: AttentionModel) -> PCM:
    """Speech and a second of silence, in whole steps."""
    pcm = np.pad(read_pcm(SAMPLE, model.config.sample_rate), (0, model.config.sample_rate))
    return pcm[: len(pcm) // model.config.step_samples * model.config.step_samples]


def test_a_network_without_segment_context_searches_the_outputs_of_the_stream(gru: AcousticModel) -> None:
    passes = second_passes_of(gru.facts, decoder_of(gru.facts))
    assert list(passes) == ["accurate"], "the segment's own context gives it nothing"
    accurate = passes["accurate"]
    accurate.warm_up()
    assert accurate.reads_audio, "for the network that writes segments"
    assert accurate.second.weights == accurate.first.weights
    alone = second_passes_of(gru.facts, decoder_of(gru.facts, lm="off", decoder="beam"), "off")["accurate"]
    assert not alone.reads_audio
    narrow = dataclasses.replace(gru.facts, config=dataclasses.replace(gru.config, sample_rate=8_000))
    by_telephone = second_passes_of(narrow, decoder_of(narrow))["accurate"]
    assert not by_telephone.reads_audio, "that network reads 16 kHz alone"
    in_floats = dataclasses.replace(gru.facts, precision="bf16")
    assert second_passes_of(in_floats, decoder_of(in_floats))
    assert not second_passes_of(gru.facts, decoder_of(gru.facts, decoder="greedy"))


@pytest.mark.parametrize("finals", ["context", "accurate"])
def test_a_network_with_segment_context_processes_the_segment_again(
    model: AttentionModel, speech: PCM, monkeypatch: pytest.MonkeyPatch, finals: Any
) -> None:
    """The words of the final are those of `read`, whatever the stream computed."""
    facts, read = model.facts, AttentionModel.read
    given: list[PCM] = []
    monkeypatch.setattr(AttentionModel, "read", lambda self, pcm: given.append(pcm) or read(self, pcm))
    accurate = second_passes_of(facts, decoder_of(facts))[finals]
    assert accurate.reads_audio
    state: Any = accurate.start(0)
    rows = model.read(speech)[facts.config.delay_frames :]
    spoiled = rows.copy()
    spoiled[: len(rows) // 2, 1:] = -20.0
    spoiled[: len(rows) // 2, 0] = 0.0
    accurate.advance([state], spoiled[None])
    again = accurate.second_pass(state, FrameAudio(speech, 0))
    assert again is not None
    words = again()
    assert len(words) > len(accurate.words(state))
    assert np.array_equal(given[-1], speech)
    in_floats = dataclasses.replace(facts, precision="bf16")
    assert not second_passes_of(in_floats, decoder_of(in_floats))


def test_the_reader_computes_what_the_served_checkpoint_computes(model: AttentionModel, speech: PCM) -> None:
    reader = reader_for(model.facts, None)
    assert (reader.frame_samples, reader.step_frames) == (model.config.frame_samples, model.config.frames_per_step)
    assert reader.digest == model.digest
    assert np.array_equal(reader.read(speech), model.read(speech)[model.config.delay_frames :])


def test_the_checkpoint_is_loaded_once_and_by_the_first_segment(
    model: AttentionModel, speech: PCM, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[Path | None] = []

    def load(path: Path | None, **options: Any) -> AcousticModel:
        loaded.append(path)
        return load_own(path, **options)

    segment_model._loaded.cache_clear()
    monkeypatch.setattr(segment_model, "load_own", load)
    readers = [reader_for(model.facts, None) for _ in range(2)]
    assert not loaded
    for reader in (*readers, readers[0]):
        reader.read(speech[: model.config.step_samples])
    assert loaded == [None]


def test_a_file_that_is_not_the_served_one_is_refused_by_its_digest(model: AttentionModel, tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    for suffix in (".safetensors", ".json"):
        shutil.copy(checkpoint.named(Path("tutti-mandarin")).with_suffix(suffix), path.with_suffix(suffix))
    reader = reader_for(model.facts, path)
    with pytest.raises(CheckpointError, match=rf"{path} is not the model that is served: .*, not {model.digest}"):
        reader.read(np.zeros(model.config.step_samples, np.int16))


def test_a_model_that_cannot_process_segments_is_refused(
    model: AttentionModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Streaming:
        config, facts = model.config, ModelFacts.own(model.config, "streams", "int8")

    monkeypatch.setattr(segment_model, "load_own", lambda path, **_: Streaming())
    with pytest.raises(CheckpointError, match="tutti cannot process whole segments; use finals=fast"):
        reader_for(Streaming.facts, None).read(np.zeros(model.config.step_samples, np.int16))


def test_the_shipped_recordings_are_recognized_at_least_as_well() -> None:
    errors = {}
    for finals in ("fast", "context", "accurate"):
        found = asyncio.run(
            evaluate(samples(), lambda chosen=finals: open_local(Settings(max_batch=8), finals=chosen), 8)
        )
        errors[finals] = found.figures()["wer"]
    assert errors["accurate"] <= errors["context"] <= errors["fast"], errors


def test_a_grammar_finds_in_kept_outputs_what_it_found_in_the_stream(gru: AcousticModel) -> None:
    grammar, passes = grammars_of(gru.facts)["digits"], second_passes_of(gru.facts, decoder_of(gru.facts))
    accurate, spoken = passes["accurate"].over(grammar), read_pcm(SAMPLE.with_name("number.flac"))
    state: Any = accurate.start(gru.facts.config.delay_frames)
    (rows,) = log_probs_of(gru, [spoken])
    accurate.advance([state], rows[None])
    again = accurate.second_pass(state, None)
    assert again is not None
    assert [word.text for word in again()] == [word.text for word in accurate.words(state)] != []
