"""A whole step with recurrent weights that stay on the chip: one launch per layer for small batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn

from model.errors import PrecisionError
from model.gpu.block import StepBlock
from model.gpu.triton.step import TritonStep
from model.torch_network.network import GRULayer, Network
from tutti_asr_lab.gpu.layer import CAPABILITY, NormKernel, PersistentLayer, layer_fits, layer_layout
from tutti_asr_lab.gpu.pack import MAX_ROWS, fits_layer, layout_of
from tutti_asr_lab.gpu.persistent import PersistentGru, Workspace, fits


class PersistentStep(TritonStep):
    """A step with persistent kernels: whole layers up to `fits_layer`, recurrences alone up to `MAX_ROWS` rows.

    Its bits are those of `TritonStep`.
    """

    def __init__(
        self, network: Network, slabs: Mapping[str, Tensor], *, largest_rows: int, largest_steps: int,
        whole: bool = True,
    ) -> None:  # fmt: skip
        """See `TritonStep`; `whole`: with launches of whole layers where they fit.

        Raises: PrecisionError if the recurrence does not fit the device.
        """
        super().__init__(network, slabs, largest_rows=largest_rows, largest_steps=largest_steps)
        hidden, device = network.config.hidden, slabs["pcm"].device
        properties = torch.cuda.get_device_properties(device)
        if not fits(hidden, properties):
            raise PrecisionError(f"persistent kernels do not support hidden size {hidden} on this GPU")
        grus = [cast(GRULayer, gru) for gru in network.grus]
        norms = [cast(nn.LayerNorm, norm) for norm in network.norms]
        self.workspaces = [Workspace(layout_of(hidden), device)]
        self.resident = [
            PersistentGru(gru.recurrent.weight, gru.recurrent.bias, device, self.workspaces[0]) for gru in grus
        ]
        able = torch.cuda.get_device_capability(device) >= CAPABILITY
        self.norm_kernels = [NormKernel(norm, device) for norm in norms] if able else None
        self.whole: list[PersistentLayer] = []
        if whole and layer_fits(hidden, properties):
            self.workspaces.append(Workspace(layer_layout(hidden)[0], device))
            self.whole = [
                PersistentLayer(norm, gru, device, self.workspaces[1]) for norm, gru in zip(norms, grus, strict=True)
            ]
        self.error = torch.zeros(1, dtype=torch.int32, device=device)

    def enqueue(self, block: StepBlock, rows: int, steps: int) -> None:
        """See `TritonStep`."""
        frames = steps * self.config.frames_per_step
        small = bool(self.whole) and fits_layer(rows, frames)
        self.convolve(block, rows, frames, self.whole[0].weights if small else self.inputs[0].weights)
        x = self._whole_layers(block, rows, frames) if small else self.layers(block, rows, frames)
        self.leave(x, block, rows, steps)

    def _whole_layers(self, block: StepBlock, rows: int, frames: int) -> Tensor:
        x, after = self.x
        following = [*(layer.weights for layer in self.whole[1:]), self.dense.weights]
        for i, (layer, ahead) in enumerate(zip(self.whole, following, strict=True)):
            layer.enqueue(
                x, after, self.gates, self.slabs[f"gru{i}"], block.read[:rows], block.write[:rows], block.rows,
                self.error, frames, ahead if self.launching.ahead else None,
            )  # fmt: skip
            x, after = after, x
        return x

    def layers(self, block: StepBlock, rows: int, frames: int) -> Tensor:
        """See `TritonStep`; above `MAX_ROWS` rows by its kernels, with the normalization of whole layers."""
        x, after = self.x
        columns = rows * frames
        for i, (product, resident) in enumerate(zip(self.inputs, self.resident, strict=True)):
            by_frame = self.recurrences[i] if rows > MAX_ROWS else None
            if self.norm_kernels is None:
                self.norms[i].enqueue(x, self.normed, columns, self.launching)
            else:
                ahead = product.weights if i > 0 and by_frame is None and self.launching.ahead else None
                self.norm_kernels[i].enqueue(x, self.normed, columns, ahead)
            product.enqueue(
                self.normed, self.gates, columns, frames, self.scratch, launching=self.launching,
                ahead=(by_frame or resident).weights,
            )  # fmt: skip
            tensors = (
                self.gates[:columns].view(rows, frames, -1), x[:columns].view(rows, frames, -1),
                after[:columns].view(rows, frames, -1), self.slabs[f"gru{i}"], block.read[:rows], block.write[:rows],
            )  # fmt: skip
            if by_frame is None:
                resident.enqueue(*tensors, block.rows, frames, self.error)
            else:
                by_frame.enqueue(*tensors, frames)
            x, after = after, x
        return x

    def check(self) -> None:
        """Wait for the device; clear and report an aborted launch. Raises: KernelError."""
        try:
            for workspace in self.workspaces:
                workspace.check()
        except Exception:
            for workspace in self.workspaces:
                workspace.reset()
            raise
