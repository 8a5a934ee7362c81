"""Log-probs of whole recordings: those of the network for each recording alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from model import acoustic
from model.acoustic import log_probs_of
from model.torch_model import TorchModel


@pytest.mark.parametrize("rows", [2, 48])
def test_recordings_of_any_lengths_in_any_order_get_the_outputs_of_each_alone(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acoustic, "ROWS", rows)
    model, rng = TorchModel.random(seed=1), np.random.default_rng(1)
    config = model.config
    recordings = [rng.integers(-9_000, 9_000, length, dtype=np.int16) for length in (9_000, 1, 4_000, 12_800, 12_345)]
    together = log_probs_of(model, recordings)
    for pcm, found in zip(recordings, together, strict=True):
        (alone,) = log_probs_of(model, [pcm])
        assert np.array_equal(found, alone)
        steps = -(-len(pcm) // config.step_samples)
        whole = torch.zeros(1, steps * config.step_samples, dtype=torch.int16)
        whole[0, : len(pcm)] = torch.from_numpy(pcm)
        with torch.inference_mode():
            expected, _ = model.network(whole, model.network.fresh_state(1))
        assert found.shape == (steps * config.frames_per_step, config.outputs)
        assert np.allclose(found, expected[0].numpy(), atol=1e-4)
