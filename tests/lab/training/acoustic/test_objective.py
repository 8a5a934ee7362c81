"""Loss of a micro-batch: the weight of all label sequences, phones."""

import dataclasses

import numpy as np
import pytest
import torch

from model.torch_network.network import Network
from tests.support.training.tones import TINY
from tutti_asr_lab.training.acoustic.averaging import MovingAverage
from tutti_asr_lab.training.acoustic.data.batches import Batch, Targets
from tutti_asr_lab.training.acoustic.losses.ctc import ctc_loss
from tutti_asr_lab.training.acoustic.objective import Objective
from tutti_asr_lab.training.acoustic.recipe import Recipe, recipe_of

TEXTS = [[1, 2, 3], [2, 4]]
PHONES = [[1, 2], [3]]
PHONE_SYMBOLS = ("a", "k", "t")


def batch(phones=True):
    return Batch(
        key=(0, 0),
        pcm=torch.zeros(2, 0, dtype=torch.int16),
        recorded=torch.zeros(2, 0, dtype=torch.int16),
        frames=torch.tensor([12, 9]),
        letters=Targets.of(TEXTS),
        phones=Targets.of(PHONES) if phones else None,
        audio_s=1.0,
    )


def losses(recipe, *, update=0, phones=False, features=None):
    torch.manual_seed(1)
    network = Network(dataclasses.replace(TINY, phones=PHONE_SYMBOLS if phones else ()), recipe.dropout).train()
    objective = Objective(network, recipe, "fp32", [TEXTS, PHONES] if phones else [TEXTS])
    if features is None:
        features = torch.randn(2, 4 * 14, TINY.mel_bins, generator=torch.Generator().manual_seed(2))
    return objective(features, batch(phones), np.random.default_rng(3), update), objective


def test_the_denominator_is_added_from_the_recipes_update_on():
    plain, _ = losses(Recipe())
    recipe = Recipe(denominator=0.6, denominator_from=5)
    before, _ = losses(recipe, update=4)
    after, _ = losses(recipe, update=5)
    assert before.total.item() == plain.total.item()
    assert after.total.item() < plain.total.item(), "the log of a probability is added"
    assert after.figures == plain.figures, "the figures contain only CTC"


def test_phones_have_their_weight_with_all_other_loss_terms():
    """Letters have the rest of the weight, figures count letters only, and both outputs have gradients."""
    recipe = Recipe(phone_weight=0.3, denominator=0.6, dropout=0.1)
    found, objective = losses(recipe, phones=True)
    found.total.backward()
    letters, phones = objective.network.parts(objective.network.head.weight.grad.t())  # (H, V), (H, P + 1)
    assert letters.abs().sum(0).min() > 0
    assert phones.abs().sum(0).min() > 0
    assert found.figures[1] == 5


def test_the_recipe_can_leave_letters_to_plain_ctc():
    """Phones keep their denominator, because the decoder searches over phones."""
    letters = Recipe(denominator=0.6, denominator_letters=False)
    assert losses(letters)[0].total.item() == losses(Recipe(denominator=0.6))[0].total.item(), "there are no phones"
    for share in (0.0, 1.0):
        values = {"phone_weight": share, "denominator": 0.6}
        both, plain, neither = (
            losses(Recipe(**each), phones=True)[0].total.item()
            for each in (values, values | {"denominator_letters": False}, {"phone_weight": share})
        )
        assert plain == (both if share else neither)
        assert both < neither


def test_a_phone_counts_as_much_as_a_letter_times_its_weight():
    parts = [losses(Recipe(phone_weight=share), phones=True)[0] for share in (0.0, 0.4, 1.0)]
    letters, both, phones = (each.total.item() for each in parts)
    assert both == pytest.approx(0.6 * letters + 0.4 * phones, rel=1e-5)
    assert letters == pytest.approx(parts[0].figures[0], rel=1e-5)


def test_ctc_of_a_batch_is_the_sum_over_its_rows():
    log_probs = torch.randn(2, 12, 6).log_softmax(-1)
    frames, targets = torch.tensor([12, 9]), Targets.of(TEXTS)
    each = [ctc_loss(log_probs[i : i + 1], frames[i : i + 1], Targets.of([TEXTS[i]])).item() for i in range(2)]
    assert ctc_loss(log_probs, frames, targets).item() == pytest.approx(sum(each), rel=1e-5)


def test_the_average_soon_forgets_random_weights_and_equals_the_weights_without_a_decay():
    network = Network(TINY)
    average, none = MovingAverage(network, 0.999), MovingAverage(network, 0.0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.fill_(1.0)
    for update in range(1, 200):
        average.follow(network, update)
        none.follow(network, update)
    assert float(average.network.head.weight.mean()) == pytest.approx(1.0, abs=1e-3)
    assert torch.equal(none.network.head.weight, network.head.weight)


NUMBERS = [name for name, value in Recipe().to_dict().items() if type(value) in (int, float)]
IMPOSSIBLE = [*(pair for name in NUMBERS for pair in ((name, -1), (name, float("nan")))), ("weights", {"tones": -1})]
IMPOSSIBLE += [("denominator", 1.0), ("moving_average", 1.0), ("dropout", 1.0), ("decay", 1.5), ("noise", 1.01)]
IMPOSSIBLE += [("lead_s", -0.1), ("gain_db", [4, -20]), ("noise_snr_db", [3]), ("room", True)]


@pytest.mark.parametrize(("name", "value"), IMPOSSIBLE)
def test_recipes_with_invalid_values_are_refused(name, value):
    with pytest.raises(ValueError, match=name):
        _ = Recipe(**{name: value}) if hasattr(Recipe(), name) else recipe_of({"augmentation": {name: value}}, 80)
