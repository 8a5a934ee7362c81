"""Recordable steps for `model.gpu.slots`, built from step models: torch calls on slabs, for tests on a CPU."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from model.gpu.block import StepBlock
from model.gpu.slots import RecordedSlots
from model.torch_network.slabs import RowSpec
from model.torch_network.slots import StepModel


class EagerStep:
    """Step that gathers the states, runs the model's step once per single step, and scatters the states."""

    def __init__(self, model: StepModel, slabs: Mapping[str, Tensor]) -> None:
        self.model, self.slabs = model, slabs

    def enqueue(self, block: StepBlock, rows: int, steps: int) -> None:
        """Step real rows and padding."""
        least = max(rows, self.model.min_rows)
        samples = block.pcm.shape[1] // steps
        state = {name: slab[block.read[:rows].long()] for name, slab in self.slabs.items()}
        padded = {
            name: torch.cat([each, each.new_zeros(least - rows, *each.shape[1:])]) for name, each in state.items()
        }
        outputs = []
        for step in range(steps):
            inputs = block.pcm[:, step * samples : (step + 1) * samples]
            inputs = torch.cat([inputs, inputs.new_zeros(least - rows, samples)])
            out, padded = self.model.step(inputs, padded)
            outputs.append(out[:rows])
        for name, slab in self.slabs.items():
            slab[block.write[:rows].long()] = padded[name][:rows]
        block.out.copy_(torch.stack(outputs, dim=1).view(block.out.shape))


def recorded(model: StepModel, outputs: RowSpec, capacity: int, largest: int) -> RecordedSlots:
    """Return a slot model that records the steps of `model`; `outputs`: outputs of one row."""
    return RecordedSlots(
        lambda slabs, _rows, _steps: EagerStep(model, slabs),
        inputs=model.input_spec,
        outputs=outputs,
        states=model.state_spec,
        device=torch.device("cpu"),
        capacity=capacity,
        largest=largest,
    )
