"""Runs that differ in one value: updates to a loss, pages, and precisions that learn alike."""

import json

import pytest
from typer.testing import CliRunner

from model.recordings import read_manifest
from tests.support.training.tones import PLAIN, RATE, TINY, recipe, write_tones
from tutti_asr_lab.training.acoustic.curves import variants
from tutti_asr_lab.training.acoustic.curves.variants import Point, Variant, compare, markdown, updates_to
from tutti_asr_lab.training.acoustic.data.corpus import Corpus
from tutti_asr_lab.training.acoustic.optimizer.optimizers import Schedule
from tutti_asr_lab.training.acoustic.recipe import read_recipe


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    folder = write_tones(tmp_path_factory.mktemp("tones"))
    return tuple(
        Corpus(read_manifest(folder / f"{name}.jsonl"), folder / "cache", RATE) for name in ("tones", "held_out")
    )


def point(update, loss):
    return Point(update, 0.1, loss, loss, 0.5, 0.5)


def test_updates_to_a_loss_are_interpolated_between_two_validations():
    points = [point(10, 3.0), point(20, 1.0)]
    assert updates_to(points, 2.0) == 15.0
    assert updates_to(points, 3.0) == 10.0
    assert updates_to(points, 0.5) is None


def test_a_run_ends_at_its_target_and_more_micro_batches_need_no_more_updates(corpora):
    base = recipe(updates=60, micro_batch_s=5.0, matrix_lr=1e-2, vector_lr=1e-2, decay=0.0, augmentation=PLAIN)
    one, four = compare(TINY, base, corpora, "micro_batches", [1, 4], every=5, target=1.2, announce=lambda _: None)
    assert one.reached is not None
    assert four.reached is not None
    assert four.reached <= one.reached
    assert one.points[-1].loss <= 1.2 < one.points[-2].loss
    assert one.points[-1].update < 60


def test_fp16_learns_as_fp32_does(corpora):
    base = recipe(updates=12, micro_batch_s=6.0, augmentation=PLAIN)
    fp32, fp16 = compare(
        TINY, base, corpora, "precision", ["fp32", "fp16"], every=6, target=None, announce=lambda _: None
    )
    assert fp16.points[-1].loss == pytest.approx(fp32.points[-1].loss, rel=0.1)
    assert fp16.points != fp32.points, "the products are rounded"


def test_the_page_has_the_updates_relative_to_the_first_run():
    runs = [
        Variant("1", (point(40, 1.0),), 40.0, 0),
        Variant("2", (point(24, 1.0),), 24.0, 1),
        Variant("4", (point(9, 2.0),), None, 0),
    ]
    page = markdown("micro_batches", runs, 1.0, "command")
    assert "| 2 | 24 | 0.60 | 24 |" in page
    assert "| 4 | not reached | – |" in page


def run(tmp_path, *arguments):
    folder = write_tones(tmp_path)
    app = variants.typer.Typer()
    app.command()(variants.main)
    shared = ["--manifest", folder / "tones.jsonl", "--validation", folder / "held_out.jsonl", "--cache", folder / "c"]
    return CliRunner().invoke(app, [str(each) for each in (*arguments, *shared, "--out", folder / "found")])


def test_the_program_writes_a_document_a_page_and_a_plot(tmp_path):
    (tmp_path / "short.json").write_text(
        '{"model": {"hidden": 16, "layers": 1, "conv_channels": 8}, "recipe": {"updates": 2}}'
    )
    done = run(tmp_path, "micro_batches", "1", "2", "--target", "0.1", "--recipe", tmp_path / "short.json")
    assert done.exit_code == 0, done.output
    document = json.loads((tmp_path / "found.json").read_text())
    assert [each["value"] for each in document["variants"]] == ["1", "2"]
    assert (tmp_path / "found.md").read_text().startswith("# Learning curves by micro_batches")
    assert (tmp_path / "found.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("micro_batch", "1"), "not a number or a name in a recipe"),
        (("micro_batches", "3"), "not a power of two"),
        (("micro_batches", "many"), "micro_batches"),
    ],
)
def test_an_error_names_the_key_or_the_value(tmp_path, arguments, message):
    done = run(tmp_path, *arguments, "--recipe", "tiny")
    assert done.exit_code != 0
    assert message in " ".join(done.output.replace("│", " ").split())


def test_the_shipped_recipe_keeps_its_learning_rate_for_the_first_half():
    """Runs to a target loss end within it."""
    _, chosen = read_recipe(variants.Path("tiny"))
    rates = [Schedule(chosen.updates, chosen.warmup, chosen.decay)(update) for update in (50, 199, 399)]
    assert rates[:2] == [1.0, 1.0]
    assert rates[2] < 0.01
