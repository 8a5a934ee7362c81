"""Hyperparameters of a training run, and their JSON form."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import msgspec

from model.config import ModelConfig
from model.errors import TrainingError
from model.text.files import read_text
from tutti_asr_lab.gpu.training import RECURRENCES
from tutti_asr_lab.training.acoustic.augment import AtLeast0, Augmentation, Count, Share
from tutti_asr_lab.training.acoustic.optimizer.precision import CHOICES
from tutti_asr_lab.training.acoustic.parallel.all_reduce import is_power_of_two

RECIPES = Path(__file__).parent / "recipes"
AtLeast1 = Annotated[int, msgspec.Meta(ge=1)]
Below1 = Annotated[float, msgspec.Meta(ge=0, lt=1)]
Positive = Annotated[float, msgspec.Meta(gt=0)]


@dataclass(frozen=True, slots=True)
class Recipe:
    """Hyperparameters of a run. Seconds are of audio; learning rates are peaks. Stored in the checkpoint."""

    updates: AtLeast1 = 3_500  # length of the schedule
    stop: AtLeast1 | None = None  # update after which to stop before the schedule ends, to continue with another recipe
    micro_batch_s: Positive = 200.0  # audio of one forward and backward pass, including padding
    micro_batches: int = 2  # per update, 1, 2, 4, …: their gradients are added; processes share them
    precision: str = "auto"  # of matrix products: auto, fp32, bf16, fp16
    recurrence: str = "auto"  # kernels of the GRU layers on a GPU: auto, persistent, torch
    matrix_lr: AtLeast0 = 2e-3
    vector_lr: AtLeast0 = 2e-3
    weight_decay: AtLeast0 = 0.05
    warmup: Count = 150
    decay: Share = 0.7  # fraction of the updates over which the learning rates fall to zero
    dropout: Below1 = 0.0
    phone_weight: Share = 0.0  # weight of the phones in the loss; 0 = no phone outputs
    denominator: Below1 = 0.0  # weight of the probability of all label sequences, below 1; 0 = plain CTC
    denominator_order: AtLeast1 = 4  # order of the n-gram of labels
    denominator_states: AtLeast1 = 3_000  # number of its contexts
    denominator_letters: bool = True  # whether letters have a denominator too if the network has phone outputs
    denominator_from: Count = 0  # updates of plain CTC before it is added; random weights need some
    distillation: Share = 0.0  # weight of the divergence from the teachers in the loss; 0 = no teachers
    moving_average: Below1 = 0.0  # decay of the averaged weights per update; 0 = the last weights
    clip_norm: Positive = 1.0
    seed: Count = 1
    speaker_cap: AtLeast1 = 120  # utterances per speaker and epoch, in sources with five speakers or more
    weights: dict[str, AtLeast0] = field(default_factory=dict)  # repetitions by source; 1 if not listed
    augmentation: Augmentation = field(default_factory=Augmentation)

    def __post_init__(self) -> None:
        """Check the values. Raises: ValueError."""
        _check(Recipe, dataclasses.asdict(self))
        if not is_power_of_two(self.micro_batches):
            raise ValueError(f"micro_batches {self.micro_batches} is not a power of two: 1, 2, 4, …")
        if self.precision not in CHOICES:
            raise ValueError(f"precision {self.precision!r} is not one of {', '.join(CHOICES)}")
        if self.recurrence not in RECURRENCES:
            raise ValueError(f"recurrence {self.recurrence!r} is not one of {', '.join(RECURRENCES)}")

    @property
    def last_update(self) -> int:
        """Last update of the run."""
        return self.updates if self.stop is None else min(self.stop, self.updates)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return dataclasses.asdict(self)


def read_recipe(path: Path) -> tuple[ModelConfig, Recipe]:
    """Read a recipe file, `{"model": {…}, "recipe": {…}}`, or a shipped recipe by name; omitted values have defaults.

    Raises: TrainingError.
    """
    if not path.exists() and path.suffix != ".json" and (RECIPES / f"{path.name}.json").exists():
        path = RECIPES / f"{path.name}.json"
    elif not path.exists():
        names = ", ".join(sorted(each.stem for each in RECIPES.glob("*.json")))
        raise TrainingError(
            f"recipe {path} not found; --recipe takes a JSON file, or the name of a shipped recipe: {names}"
        )
    try:
        values = json.loads(read_text(path, TrainingError))
    except ValueError as error:
        raise TrainingError(f"{path} is not a recipe: not JSON: {error}") from None
    try:
        top = section(values, "the recipe file", None)
        config = ModelConfig(**section(top.get("model", {}), "model", ModelConfig))
        return config, recipe_of(top.get("recipe", {}), config.mel_bins)
    except (ValueError, TypeError, AttributeError) as error:
        raise TrainingError(f"{path} is not a recipe: {error}") from error


def recipe_of(values: Any, mel_bins: int) -> Recipe:
    """Build the recipe of a JSON object, for a model with `mel_bins`. Raises: ValueError, TypeError."""
    recipe = section(values, "recipe", Recipe)
    augmentation = Augmentation(**section(recipe.pop("augmentation", {}), "augmentation", Augmentation))
    if augmentation.frequency_masks and augmentation.frequency_mask_bins > mel_bins:
        raise ValueError(
            f"frequency_mask_bins {augmentation.frequency_mask_bins} is more than the model's mel_bins, {mel_bins}"
        )
    return Recipe(**recipe, augmentation=augmentation)


def section(values: Any, name: str, kind: type[Any] | None) -> dict[str, Any]:
    """Check a JSON object against the fields of `kind`; lists become tuples. Raises: ValueError with the wrong key."""
    if not isinstance(values, dict):
        raise ValueError(f"{name} must be a JSON object, not {_shown(values)}")  # noqa: TRY004 - an error in a file
    known = ("model", "recipe") if kind is None else tuple(item.name for item in dataclasses.fields(kind))
    for key in values:
        if key not in known:
            near = get_close_matches(key, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise ValueError(f"{key!r} is not a key of {name}{hint} Valid keys: {', '.join(known)}")
    if kind is not None:
        _check(kind, values)
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}


def _check(kind: type[Any], values: dict[str, Any]) -> None:
    """Check JSON values against the annotations of the fields, which have their ranges. Raises: ValueError."""
    types = get_type_hints(kind, include_extras=True)
    for key, value in values.items():
        try:
            json.dumps(value, allow_nan=False)
            msgspec.convert(value, types[key])
        except ValueError as error:
            raise ValueError(f"{key}: {_shown(value)} is not valid: {error}") from error


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)[:60]
