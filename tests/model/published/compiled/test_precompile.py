"""Steps compiled without a model: a step of a real one needs no further compilation."""

from __future__ import annotations

import numpy as np
import pytest

from model.published.compiled.fastconformer import step as fastconformer
from model.published.compiled.slots import CompiledSlots
from model.published.compiled.team import help_out
from model.published.compiled.zipformer2 import step as zipformer2
from model.warm_up import PUBLISHED, precompile
from tests.support.networks.compiled import compiled_model


@pytest.mark.parametrize(("kind", "step"), [("nemo-ctc", fastconformer.step), ("zipformer2-ctc", zipformer2.step)])
def test_a_step_has_the_types_that_are_compiled_in_advance(kind, step):
    assert step in PUBLISHED
    precompile(step)
    before = step.signatures
    model = compiled_model(kind)
    windows = np.zeros((1, model.contract.window, 80), np.float32)
    CompiledSlots(model.compiled, capacity=1).run(np.array([0]), windows)
    assert step.signatures == before
    assert len(before) == 1


def test_help_has_the_types_that_are_compiled_in_advance():
    assert help_out in PUBLISHED
    precompile(help_out)
    before = help_out.signatures
    model = compiled_model("nemo-ctc")
    windows = np.zeros((1, model.contract.window, 80), np.float32)
    CompiledSlots(model.compiled, capacity=1, threads=2, large=0).run(np.array([0]), windows)
    assert help_out.signatures == before
    assert len(before) == 1
