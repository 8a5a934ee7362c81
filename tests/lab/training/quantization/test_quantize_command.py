"""`tutti quantize`: a checkpoint that loads, error rates before and after, errors in one line."""

import json

import numpy as np
import pytest
import soundfile
from typer.testing import CliRunner

from model import checkpoint
from model.recordings import Utterance
from model.torch_network.checkpoint import load_network, save_network
from server.cli import app
from tests.support.networks.small_networks import SMALL, noise, small_network
from tutti_asr_lab.training.quantization import run as quantization_run
from tutti_asr_lab.training.quantization.run import balanced

runner = CliRunner()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A float32 checkpoint and a manifest of noise with words as texts."""
    path = tmp_path_factory.mktemp("quantize")
    rows = []
    for number, pcm in enumerate(noise(seconds=4.5)):
        soundfile.write(path / f"{number}.wav", pcm, SMALL.sample_rate)
        rows.append(
            {"audio": f"{number}.wav", "text": "a word", "source": f"s{number % 2}", "speaker": "x", "duration": 1.5}
        )
    (path / "noise.jsonl").write_text("\n".join(map(json.dumps, rows)))
    save_network(small_network(), path / "floats.safetensors")
    return path


def quantize(folder, out, *more, source="floats.safetensors", manifest="noise.jsonl"):
    arguments = ["quantize", str(folder / source), "--manifest", str(folder / manifest), "--out", str(out)]
    return runner.invoke(app, [*arguments, *map(str, more)])


def test_it_writes_integers_and_prints_the_error_rates_of_both(folder, tmp_path):
    out = tmp_path / "integers.safetensors"
    done = quantize(folder, out, "--validation", folder / "noise.jsonl")
    assert done.exit_code == 0, done.output
    numbers, _ = checkpoint.load_quantized(out)
    assert np.abs(numbers.products["head"].weight.astype(int)).max() <= 63
    for decoder in ("greedy", "beam"):
        assert f"WER {decoder}: fp32 " in done.output
        facts = numbers.config.training["quantization"]["validation"]
        assert set(facts[decoder]) == {"fp32", "int8"}
    assert numbers.config.version == "0-int8"
    assert numbers.config.training["quantization"]["from_sha256"] == load_network(folder / "floats.safetensors")[1]
    assert done.output.splitlines()[-1].startswith(f"wrote {out}, ")


def test_the_draw_with_the_least_divergence_is_kept(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(quantization_run, "CALIBRATED", 1)
    out = tmp_path / "best.safetensors"
    done = quantize(folder, out, "--draws", 3, "--seed", 5)
    assert done.exit_code == 0, done.output
    said = [line.split() for line in done.output.splitlines() if line.startswith("seed ")]
    divergences = {int(words[1].rstrip(":")): float(words[3]) for words in said}
    assert list(divergences) == [5, 6, 7]
    assert len(set(divergences.values())) > 1
    facts = checkpoint.load_quantized(out)[0].config.training["quantization"]
    assert facts["seed"] == min(divergences, key=divergences.get)
    assert {int(seed): draw["divergence"] for seed, draw in facts["draws"].items()} == divergences
    assert done.output.splitlines()[-2] == f"the best of 3: seed {facts['seed']}"


def test_held_out_recordings_decide_between_draws(folder, tmp_path, monkeypatch):
    rates = {5: 0.5, 6: 0.0, 7: 1e-9}
    scored = iter([0.0, *rates.values()])
    monkeypatch.setattr(quantization_run, "resolve_decoder", lambda *_: "greedy")
    monkeypatch.setattr(quantization_run, "report", lambda _: {"wer": next(scored)})
    out = tmp_path / "best.safetensors"
    done = quantize(folder, out, "--draws", 3, "--seed", 5, "--validation", folder / "noise.jsonl")
    assert done.exit_code == 0, done.output
    facts = checkpoint.load_quantized(out)[0].config.training["quantization"]
    assert facts["seed"] == 6
    assert {seed: draw["wer_greedy"] for seed, draw in facts["draws"].items()} == {"5": 0.5, "6": 0.0, "7": 1e-9}
    assert facts["validation"] == {"greedy": {"fp32": {"wer": 0.0}, "int8": {"wer": 0.0}}}


def test_a_quantized_checkpoint_is_refused(folder, tmp_path):
    once = tmp_path / "once.safetensors"
    assert quantize(folder, once).exit_code == 0
    done = quantize(folder, tmp_path / "twice.safetensors", source=once)
    assert done.exit_code == 1
    assert done.output == f"tutti: {once} is already quantized; give the float32 checkpoint it was made from\n"


def test_the_float32_checkpoint_is_not_overwritten(folder):
    done = quantize(folder, folder / "floats.safetensors")
    assert done.exit_code == 1
    assert "is the checkpoint itself and would be overwritten" in done.output
    assert checkpoint.load_quantized(folder / "floats.safetensors")[0] is None


@pytest.mark.parametrize(
    ("files", "named"),
    [({"source": "absent.safetensors"}, "absent.safetensors"), ({"manifest": "absent.jsonl"}, "absent.jsonl")],
)
def test_the_error_names_a_missing_file_in_one_line(folder, tmp_path, files, named):
    done = quantize(folder, tmp_path / "net.safetensors", **files)
    assert done.exit_code == 1
    assert named in done.output
    assert done.output.count("\n") == 1


def test_an_interrupted_run_writes_nothing(folder, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(quantization_run, "quantize", interrupted)
    done = quantize(folder, tmp_path / "net.safetensors")
    assert done.exit_code == 130
    assert "interrupted; nothing was written" in done.output
    assert list(tmp_path.iterdir()) == []


def test_calibration_uses_every_source_and_speaker_as_evenly_as_possible():
    many = [Utterance(f"{n}.wav", "a", "large", f"s{n % 3}", 1.0) for n in range(300)]
    few = [Utterance(f"{n}.wav", "a", "small", "t", 1.0) for n in range(5)]
    chosen = balanced([*many, *few], 40, np.random.default_rng(0))
    assert len(chosen) == len(set(chosen)) == 40
    assert sum(u.source == "small" for u in chosen) == 5
    large = [u.speaker for u in chosen if u.source == "large"]
    assert max(large.count(s) for s in set(large)) - min(large.count(s) for s in set(large)) <= 1
