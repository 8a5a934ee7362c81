"""Training runs: they learn, are deterministic, resume to the same weights, and report errors."""

import dataclasses
import json
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from model import checkpoint
from model.config import ModelConfig
from model.ctc.greedy import best_path
from model.errors import TrainingError
from model.recordings import read_manifest, read_pcm
from model.torch_network.checkpoint import load_network
from model.torch_network.network import Network
from tests.support.needs import need_programs
from tests.support.training.tones import PLAIN, RATE, TINY, recipe, write_tones
from tutti_asr_lab.training.acoustic.augment import Augmentation, add_noise, change_speed, mask
from tutti_asr_lab.training.acoustic.curves import figures
from tutti_asr_lab.training.acoustic.curves.figures import read
from tutti_asr_lab.training.acoustic.data.corpus import Corpus, epoch_order
from tutti_asr_lab.training.acoustic.optimizer.optimizers import Schedule
from tutti_asr_lab.training.acoustic.recipe import RECIPES, read_recipe
from tutti_asr_lab.training.acoustic.run import Places, train
from tutti_asr_lab.training.acoustic.snapshots import exclusive
from tutti_asr_lab.training.acoustic.trainer import Trainer
from tutti_asr_lab.training.evaluation.whole import log_probs_of
from tutti_asr_lab.training.lexicon.espeak import pronounce


@pytest.fixture(scope="module")
def corpus_folder(tmp_path_factory):
    return write_tones(tmp_path_factory.mktemp("tones"))


def places(folder, out):
    return Places([folder / "tones.jsonl"], [folder / "held_out.jsonl"], [], out, folder / "cache")


def run(folder, out, chosen, **options):
    lines = []
    path = train(TINY, chosen, places(folder, out), processes=1, device="cpu", announce=lines.append, **options)
    return path, lines


def test_a_run_learns_writes_a_checkpoint_and_reports_by_source(corpus_folder, tmp_path):
    chosen = recipe(updates=70, micro_batch_s=10.0, matrix_lr=1e-2, vector_lr=1e-2, augmentation=PLAIN)
    path, lines = run(corpus_folder, tmp_path / "tiny.safetensors", chosen)
    network, _ = load_network(path)
    facts = network.config.training
    assert facts["validation"]["by_source"]["tones"]["wer"] < 0.5
    assert facts["recipe"]["updates"] == 70
    assert any("validation" in line for line in lines)


def test_a_run_with_phones_learns_letters_and_phones_and_its_checkpoint_has_both(corpus_folder, tmp_path):
    need_programs("espeak-ng")
    chosen = recipe(
        updates=110, micro_batch_s=10.0, matrix_lr=1e-2, vector_lr=1e-2, augmentation=PLAIN,
        phone_weight=0.4, denominator=0.4, denominator_from=80,
    )  # fmt: skip
    path, _ = run(corpus_folder, tmp_path / "tiny.safetensors", chosen)
    network, _ = load_network(path)
    assert network.config.training["validation"]["by_source"]["tones"]["wer"] < 0.5
    held_out = read_manifest(corpus_folder / "held_out.jsonl")
    spoken = pronounce(sorted({word for each in held_out for word in each.text.split()}))
    correct = 0
    for each, rows in zip(held_out, log_probs_of(network, [read_pcm(each.audio) for each in held_out]), strict=True):
        recognized = best_path(network.parts(torch.from_numpy(rows))[1].numpy(), ("", *network.config.phones))
        correct += recognized == "".join(phone for word in each.text.split() for phone in spoken[word])
    assert correct > len(held_out) / 2


def trainer(folder, chosen, config=TINY):
    corpus = Corpus(read_manifest(folder / "tones.jsonl"), folder / "cache", RATE)
    made = Trainer(config, chosen, corpus, [], torch.device("cpu"))
    made.fit_features()
    return made


def weights_after(made):
    for _ in made.run():
        pass
    return made.network.state_dict()


def test_the_same_seed_gives_the_same_weights(corpus_folder):
    one, two = (weights_after(trainer(corpus_folder, recipe(updates=6))) for _ in range(2))
    assert all(torch.equal(one[name], two[name]) for name in one)
    other = weights_after(trainer(corpus_folder, recipe(updates=6, seed=2)))
    assert not torch.equal(one["head.weight"], other["head.weight"])


def test_an_interrupted_run_ends_with_the_weights_of_an_undisturbed_one(corpus_folder):
    chosen = recipe(updates=8, micro_batch_s=10.0)
    undisturbed = weights_after(trainer(corpus_folder, chosen))
    first = trainer(corpus_folder, chosen)
    for progress in first.run():
        if progress.update == 5:
            break
    second = trainer(corpus_folder, chosen)
    second.resume(first.state_dict())
    resumed = weights_after(second)
    assert all(torch.equal(undisturbed[name], resumed[name]) for name in undisturbed)


def test_phones_of_another_language_start_at_random_and_all_other_weights_are_copied(corpus_folder):
    need_programs("espeak-ng")
    made = trainer(corpus_folder, recipe(updates=1, phone_weight=0.5))
    torch.manual_seed(9)
    other = Network(dataclasses.replace(TINY, phones=("x", "y")))
    letters, before = len(TINY.vocabulary), made.network.head.weight.clone()
    made.start_from(other)
    assert torch.equal(made.network.head.weight[:letters], other.head.weight[:letters])
    assert torch.equal(made.network.head.weight[letters:], before[letters:])
    assert torch.equal(made.network.dense.weight, other.dense.weight)


def test_common_letters_keep_their_weights_and_others_start_at_random(corpus_folder):
    vocabulary = ("", " ", "ñ", *TINY.vocabulary[3:])
    made = trainer(corpus_folder, recipe(updates=1), dataclasses.replace(TINY, vocabulary=vocabulary))
    other, before = Network(TINY), made.network.head.weight.clone()
    made.start_from(other)
    found = made.network.head.weight
    assert torch.equal(found[2], before[2])
    assert torch.equal(found[:2], other.head.weight[:2])
    assert torch.equal(found[3:], other.head.weight[3:])


def test_additional_layers_do_not_change_the_outputs_before_training(corpus_folder):
    other = Network(TINY).eval()
    deeper = dataclasses.replace(TINY, layers=TINY.layers + 2)
    made = trainer(corpus_folder, recipe(updates=2), deeper)
    made.start_from(other)
    pcm = torch.randint(-9_000, 9_000, (2, 5 * TINY.step_samples), dtype=torch.int16)

    def outputs(network):
        with torch.no_grad():
            return network(pcm, network.fresh_state(2))[0]

    assert torch.equal(outputs(made.network.eval()), outputs(other))
    candidate = made.network.grus[-1].input.weight
    assert not candidate[2 * TINY.hidden :].any()
    for _ in made.run():
        pass
    assert candidate[2 * TINY.hidden :].abs().min() > 0, "the additional layers have gradients"


def test_a_run_stops_at_the_recipes_update_and_another_starts_from_its_checkpoint(corpus_folder, tmp_path):
    first, _ = run(corpus_folder, tmp_path / "one.safetensors", recipe(stop=3))
    before, _ = load_network(first)
    assert before.config.training["updates"] == 3
    held_out, lines = [corpus_folder / "held_out.jsonl"], []
    second = Places(
        [corpus_folder / "tones.jsonl"], held_out, [], tmp_path / "two.safetensors", corpus_folder / "cache", first
    )
    train(
        TINY,
        recipe(updates=1, matrix_lr=1e-9, vector_lr=1e-9),
        second,
        processes=1,
        device="cpu",
        announce=lines.append,
    )
    rows = [row for row in read(second.out.with_suffix(".csv")) if "greedy_wer" in row]
    assert [row["update"] for row in rows] == [0, 1], "the weights that it starts from are validated, too"
    assert rows[0]["greedy_wer tones"] == rows[0]["greedy_wer"]
    assert [line.startswith("update 0 validation loss") and "greedy WER" in line for line in lines].count(True) == 1
    after, _ = load_network(second.out)
    assert torch.allclose(before.head.weight, after.head.weight, atol=1e-6)
    assert after.config.training["started_from"]["updates"] == 3


def test_a_start_from_a_checkpoint_of_other_sizes_is_refused(corpus_folder, tmp_path):
    first, _ = run(corpus_folder, tmp_path / "one.safetensors", recipe(stop=1))
    places_of_second = Places([corpus_folder / "tones.jsonl"], [], [], tmp_path / "two.safetensors", tmp_path, first)
    wider = ModelConfig(name="wider", conv_channels=32, hidden=96, layers=1, lookahead=2)
    with pytest.raises(TrainingError, match="other sizes"):
        train(wider, recipe(), places_of_second, processes=1, device="cpu", announce=lambda _: None)


def test_another_recipe_is_not_resumed(corpus_folder):
    first = trainer(corpus_folder, recipe())
    with pytest.raises(TrainingError, match="another recipe"):
        trainer(corpus_folder, recipe(seed=9)).resume(first.state_dict())


def test_an_interrupted_run_is_saved_and_continued_by_the_same_command(corpus_folder, tmp_path):
    lines = []

    def announce(line):
        lines.append(line)
        if line.startswith("update 50"):
            signal.raise_signal(signal.SIGINT)

    out = tmp_path / "tiny.safetensors"
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train(TINY, recipe(), places(corpus_folder, out), processes=1, device="cpu", announce=announce)
    assert lines[-1] == "interrupted at update 51; run the same command again to resume"
    assert signal.getsignal(signal.SIGINT) is before
    path, again = run(corpus_folder, out, recipe())
    assert "resuming from update 51" in again
    assert path.exists()
    undisturbed, _ = run(corpus_folder, tmp_path / "undisturbed.safetensors", recipe())
    assert path.read_bytes() == undisturbed.read_bytes()
    rows = figures.read(out.with_suffix(".csv"))
    assert [row["update"] for row in rows] == [50, 51, 60, 60]
    assert rows[-1]["validation_loss"] > 0
    assert out.with_suffix(".png").exists()


def test_a_second_run_in_the_same_folder_is_refused_before_reading_audio(corpus_folder, tmp_path):
    out = tmp_path / "tiny.safetensors"
    with exclusive(places(corpus_folder, out).snapshots), pytest.raises(TrainingError, match="another run writes"):
        train(TINY, recipe(), places(corpus_folder, out), processes=1, device="cpu", announce=pytest.fail)


SHIPPED_RECIPES = ("small.json", "small-again.json", "small-last.json")
TAUGHT_RECIPES = ("small-taught.json",)
MANDARIN_RECIPES = (  # started from the English model before its distillation
    "mandarin.json",
    "mandarin-again.json",
    "mandarin-voices.json",
    "mandarin-voices-again.json",
    "mandarin-neural.json",
    "mandarin-neural-again.json",
    "mandarin-neural-last.json",
)
GONE = {"views": 1, "consistency": 0.0, "share": 1.0}  # keys until 2026-11-30, which no shipped model changed


@pytest.mark.parametrize(
    ("model", "recipes"), [("gru", SHIPPED_RECIPES + TAUGHT_RECIPES), ("mandarin", SHIPPED_RECIPES + MANDARIN_RECIPES)]
)
def test_the_shipped_models_were_trained_with_the_shipped_recipes(model, recipes):
    described = checkpoint.named(Path(model)).with_suffix(".json")
    made = json.loads(described.read_text(encoding="utf-8"))["training"]
    for name in reversed(recipes):
        recipe_now = json.loads(json.dumps(read_recipe(RECIPES / name)[1].to_dict()))
        augmentation = dict(made["recipe"]["augmentation"])
        del augmentation["telephone_hz"]  # of the telephone lines until 2026-11-28: model/LOG.md
        assert recipe_now["augmentation"].items() >= augmentation.items(), name
        recorded = made["recipe"] | {"augmentation": recipe_now["augmentation"]}
        assert (GONE | recipe_now).items() >= recorded.items(), name
        made = made.get("started_from")
    assert made is None


WRONG = ('"updats": 3', '"micro_batches": 3', '"precision": "int8"', '"augmentation": {"frequency_mask_bins": 200}')


@pytest.mark.parametrize("values", WRONG)
def test_the_error_names_a_wrong_value_of_a_recipe(tmp_path, values):
    path = tmp_path / "bad.json"
    path.write_text(f'{{"recipe": {{{values}}}}}')
    with pytest.raises(TrainingError, match=r"updats|micro_batches 3|int8|frequency_mask_bins 200"):
        read_recipe(path)


@pytest.mark.parametrize("ignored", ["--lexicon", "--pin"])
def test_an_option_without_effect_is_refused_before_audio_is_read(tmp_path, monkeypatch, ignored):
    monkeypatch.setattr("tutti_asr_lab.training.acoustic.run.resolve_device", torch.device)
    lexicon = tmp_path if ignored == "--lexicon" else None
    given = dataclasses.replace(places(tmp_path, tmp_path / "out.safetensors"), lexicon=lexicon)
    with pytest.raises(TrainingError, match=ignored):
        train(TINY, recipe(), given, device="cuda", pin=ignored == "--pin", announce=print)


def test_epoch_order_repeats_or_thins_sources_by_weight_and_caps_speakers(corpus_folder):
    utterances = read_manifest(corpus_folder / "tones.jsonl")
    rng = np.random.default_rng(0)
    assert len(epoch_order(utterances, {"tones": 2.0}, 1_000, rng)) == 2 * len(utterances)
    assert len(epoch_order(utterances, {"tones": 0.0}, 1_000, rng)) == 0
    thinned = len(epoch_order(utterances, {}, 4, rng))  # eight utterances per speaker, a cap of four
    assert len(utterances) / 4 < thinned < 3 * len(utterances) / 4


def test_schedule_warms_up_holds_and_ends_at_zero():
    schedule = Schedule(updates=100, warmup=10, decay=0.5)
    assert schedule(0) == pytest.approx(0.1)
    assert schedule(40) == 1.0
    assert schedule(99) < 0.01


def test_noise_is_mixed_in_at_the_given_ratio():
    rng = np.random.default_rng(0)
    speech, noise = (rng.standard_normal(RATE).astype(np.float32) for _ in range(2))
    added = add_noise(speech, noise, 10.0) - speech
    ratio_db = 10 * np.log10(np.mean(speech**2) / np.mean(added**2))
    assert ratio_db == pytest.approx(10.0, abs=0.01)


def test_speed_changes_the_length():
    tone = np.sin(2 * np.pi * 6_000 * np.arange(RATE) / RATE).astype(np.float32)
    assert len(change_speed(tone, 1.25)) == pytest.approx(RATE / 1.25, abs=2)


def test_masks_zero_only_frequency_bands_and_time_spans():
    features = torch.ones(2, 40, 80)
    masked = mask(features.clone(), [40, 40], Augmentation(time_mask_share=0.2), np.random.default_rng(3))
    assert 0 < (masked == 0).float().mean() < 0.6
    assert set(masked.unique().tolist()) == {0.0, 1.0}
