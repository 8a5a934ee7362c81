"""Vectors of voices: the same bits alone, in any batch and on every processor; none of silence."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from batching.slot_model import SlotModel
from model.errors import CheckpointError
from model.recordings import PCM, read_pcm
from model.speakers.slot_model import STEP_SAMPLES, SpeakerModel, SpeakerWeights, load_speaker_model
from model.speakers.step import HOP, SIZE
from model.speakers.vectors import similarity

SAMPLES = Path(__file__).parents[3] / "model" / "samples"
DIGEST = "48e653ee40083c8794a12a7f1fe55ca54a5bf0a9670850fe29902a8ee101b296"


def steps_of(pcm: PCM) -> PCM:
    return pcm[: len(pcm) // STEP_SAMPLES * STEP_SAMPLES].reshape(-1, STEP_SAMPLES)


def recording(name: str) -> PCM:
    return steps_of(read_pcm(SAMPLES / f"{name}.flac"))


def vectors_of(model: SpeakerModel, steps: PCM, slot: int = 0) -> np.ndarray:
    model.reset(slot)
    outputs = []
    for step in steps:
        model.inputs[0] = step
        outputs.append(model.run([slot])[0])
    return np.array(outputs)


@pytest.fixture(scope="module")
def weights() -> SpeakerWeights:
    return SpeakerWeights.load()


def test_it_is_a_slot_model(weights: SpeakerWeights) -> None:
    model: SlotModel = SpeakerModel(weights, 3, largest=2)
    assert model.capacity == 3
    assert model.inputs.shape == (2, STEP_SAMPLES)
    assert model.state_bytes == len(model.export(0))


def test_speech_has_a_vector_of_norm_1_each_hop(weights: SpeakerWeights) -> None:
    outputs = vectors_of(SpeakerModel(weights, 1), recording("demo"))
    found = np.flatnonzero(outputs[:, 0])
    assert len(found) >= 5
    lengths = outputs[found, 0]
    assert ((lengths >= 0.4) & (lengths <= 4.0)).all()
    assert np.diff(found).min() >= HOP
    np.testing.assert_allclose(np.linalg.norm(outputs[found, 1:], axis=1), 1, atol=1e-5)
    assert not outputs[outputs[:, 0] == 0, 1:].any()


def test_silence_and_a_little_voice_have_no_vector(weights: SpeakerWeights) -> None:
    model = SpeakerModel(weights, 1)
    speech, silence = recording("demo"), np.zeros((40, STEP_SAMPLES), np.int16)
    assert not vectors_of(model, silence)[:, 0].any()
    assert not vectors_of(model, np.concatenate([silence, speech[20:24], silence]))[:, 0].any()
    after = vectors_of(model, np.concatenate([speech, silence]))[len(speech) + HOP :]
    assert not after[:, 0].any()


def test_a_window_begins_anew_after_a_pause(weights: SpeakerWeights) -> None:
    dice = np.random.default_rng(0)
    voice, other = (dice.normal(0, level, (24, STEP_SAMPLES)).astype(np.int16) for level in (2_000, 2_500))

    def after(pause: int, before: PCM = voice) -> np.ndarray:
        quiet = np.zeros((30 - len(before), STEP_SAMPLES), np.int16)
        steps = [quiet[: len(quiet) - pause], before, quiet[:pause], voice]
        outputs: np.ndarray = vectors_of(SpeakerModel(weights, 1), np.concatenate(steps))[30:]
        return outputs

    lengths = {pause: [round(float(length), 2) for length in after(pause)[:, 0] if length] for pause in (2, 5)}
    assert lengths == {2: [0.88, 1.28, 1.68, 2.08], 5: [0.4, 0.8, 1.2, 1.6]}
    likeness = np.sum(after(5)[:, 1:] * after(5, other)[:, 1:], axis=1)
    assert likeness[likeness != 0].min() > 0.98  # only the level is remembered


def test_rows_have_the_same_bits_in_every_batch(weights: SpeakerWeights) -> None:
    rows, length = 37, 30
    speech = recording("demo")
    audio = np.stack([np.roll(speech, -3 * row, axis=0)[:length] >> (row % 4) for row in range(rows)])
    audio[5, 10:] = 0  # some are silent while others speak

    def run(members: list[int]) -> list[bytes]:
        model = SpeakerModel(weights, rows)
        found = [b""] * len(members)
        for step in range(length):
            model.inputs[: len(members)] = audio[members, step]
            outputs = model.run(members)
            found = [before + row.tobytes() for before, row in zip(found, outputs, strict=True)]
        return [each + model.export(slot) for each, slot in zip(found, members, strict=True)]

    whole = run(list(range(rows)))
    assert sum(each[4 * (1 + SIZE) * 24 :][:4] != bytes(4) for each in whole) > rows // 3  # have vectors
    for members in ([0], [5], [36, 3, 17], list(range(16)), list(range(20, 37))):
        assert run(members) == [whole[each] for each in members], members


def test_an_exported_state_continues_with_the_same_bits(weights: SpeakerWeights) -> None:
    speech = recording("demo")
    for middle in (3, 17, 22):
        first, second = SpeakerModel(weights, 2), SpeakerModel(weights, 2)
        vectors_of(first, speech[:middle], 1)
        second.restore(0, first.export(1))
        for step in speech[middle : middle + 15]:
            first.inputs[0] = second.inputs[0] = step
            assert first.run([1]).tobytes() == second.run([0]).tobytes()


def test_a_voice_is_closer_to_itself_than_to_another_one(weights: SpeakerWeights) -> None:
    model = SpeakerModel(weights, 1)

    def mean(steps: PCM) -> np.ndarray:
        outputs = vectors_of(model, steps)
        total = outputs[outputs[:, 0] > 0, 1:].sum(axis=0)
        direction: np.ndarray = total / np.linalg.norm(total)
        return direction

    own, again, other = mean(recording("demo")[:40]), mean(recording("demo")[40:]), mean(recording("garden_gate"))
    assert similarity(own, again) > similarity(own, other) + 0.2


def test_the_bits_are_the_same_on_every_processor() -> None:
    """The digest was computed with AVX-512 and with AVX2; `make test-avx2` compares it again."""
    model, digest = load_speaker_model(1), hashlib.sha256()
    for path in sorted(SAMPLES.glob("*.flac")):
        digest.update(vectors_of(model, steps_of(read_pcm(path))).tobytes())
        digest.update(model.export(0))
    assert digest.hexdigest() == DIGEST


def test_other_weights_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "speakers.safetensors"
    for content in (b"no tensors", (SAMPLES.parent / "weights" / "tutti-punctuation.safetensors").read_bytes()):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"speakers: cannot read .*speakers\.safetensors.*reinstall tutti"):
            SpeakerWeights.load(path)
    with pytest.raises(CheckpointError, match="cannot read"):
        SpeakerWeights.load(tmp_path / "none.safetensors")


def test_serving_it_needs_no_torch() -> None:
    code = (
        "import sys; from model.speakers.slot_model import load_speaker_model; load_speaker_model(2).run([0, 1]);"
        "import model.speakers.online, model.speakers.whole;"
        "assert not {'torch', 'scipy', 'onnxruntime'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=SAMPLES.parents[1])


def test_the_size_of_a_vector_is_that_of_the_clusters() -> None:
    from model.speakers import vectors

    assert vectors.SIZE == SIZE
