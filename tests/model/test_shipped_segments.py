"""The shipped model of whole segments: above the shipped streaming one, by its recipe, and better than that alone."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from speech import samples

from model import checkpoint
from model.segment_model import SHIPPED, SegmentModel, reader_for
from model.training.recipe import RECIPES, read_recipe
from server.settings import Settings
from server.tools.evaluate import evaluate
from server.tools.local import open_local


def test_both_english_models_have_it_and_mandarin_has_not() -> None:
    small, medium, mandarin = (checkpoint.outline(path)[0] for path in checkpoint.SHIPPED_MODELS)
    assert reader_for(small) is not None
    assert reader_for(medium) is not None
    assert reader_for(mandarin) is None


def test_it_is_what_its_recipe_makes_above_the_shipped_model() -> None:
    config, recipe = read_recipe(RECIPES / "segments.json")
    model = SegmentModel.load()
    facts = model.config.training
    trunk, digest = checkpoint.outline(checkpoint.named(Path("tutti-medium")))
    assert facts["recipe"] == json.loads(json.dumps(recipe.to_dict()))
    assert facts["updates"] == recipe.updates, "the run was not finished"
    assert facts["started_from"] == trunk.training
    assert facts["trunk"] == {"name": "tutti-medium", "sha256": digest}
    assert (model.config.name, model.config.version) == (config.name, config.version)


def test_its_card_and_the_sums_name_its_weights() -> None:
    model = SegmentModel.load()
    card = (checkpoint.WEIGHTS / "SEGMENTS.md").read_text(encoding="utf-8")
    assert model.digest in card
    assert model.config.version in card
    assert f"{model.digest}  {SHIPPED.name}" in (checkpoint.WEIGHTS / "SHA256SUMS").read_text(encoding="ascii")


def test_the_shipped_recordings_are_read_at_least_as_well() -> None:
    errors = {}
    for finals in ("fast", "accurate"):
        found = asyncio.run(
            evaluate(samples(), lambda chosen=finals: open_local(Settings(max_batch=8), finals=chosen), 8)
        )
        errors[finals] = found.figures()["wer"]
    assert errors["accurate"] <= errors["fast"], errors
