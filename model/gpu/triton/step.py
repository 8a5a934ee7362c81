"""A whole step on a GPU in Triton kernels: PCM and states in, log-probabilities and states out.

`enqueue` does not allocate, copy or synchronize, so that it can be captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn

from model.config import CONTEXT
from model.gpu.block import StepBlock
from model.gpu.segments import recurrent_segments
from model.gpu.triton.features import Features
from model.gpu.triton.launching import Aside, Launching
from model.gpu.triton.layers import LookaheadNorm, Norm, enqueue_leave
from model.gpu.triton.products import LOG_SOFTMAX, SILU, Product, Scratch
from model.gpu.triton.recurrence import FrameRecurrence, states_buffer
from model.torch_network.network import GRULayer, Network


class TritonStep:
    """Packed weights of the network, buffers between its kernels, and the launches of a step."""

    def __init__(
        self, network: Network, slabs: Mapping[str, Tensor], *, largest_rows: int, largest_steps: int,
        launching: Launching | None = None,
    ) -> None:  # fmt: skip
        """`network`: in fp16 on the slabs' device; at most `largest_rows` rows of `largest_steps` steps per call.

        Raises: ValueError for sizes that the kernels do not support.
        """
        config = network.config
        self.config, self.slabs = config, dict(slabs)
        self.largest_rows, self.largest_steps = largest_rows, largest_steps
        if config.step_samples < network.features.overlap:
            raise ValueError("steps shorter than the overlap of the windows are not supported on a GPU")
        device = slabs["pcm"].device
        columns = largest_rows * largest_steps * config.frames_per_step  # output frames of all rows
        self._products(network)
        products = [(self.conv0, 2 * columns), (self.conv1, columns), *((p, columns) for p in self.inputs)]
        products += [(self.dense, columns), (self.head, columns)]
        sizes = [p.scratch_size(c) for p, most in products for c in _powers(most)]
        sizes += [FrameRecurrence.scratch_size(config.hidden, r) for r in _powers(largest_rows)]
        self.features = Features(network.features, config.conv_channels, 4 * columns)
        sizes.append(self.features.scratch_size(4 * columns))
        self.scratch = Scratch.allocate(max(s[0] for s in sizes), max(s[1] for s in sizes), device)
        self._buffers(columns, device)
        self.launching = launching if launching is not None else default_launching(network, device)
        self.aside = Aside(device)
        self.recurrences = self._recurrences(network)

    def _products(self, network: Network) -> None:
        """Pack the weights."""
        config = network.config
        conv0, conv1 = network.conv0.product, network.conv1.product
        grus = [cast(GRULayer, gru) for gru in network.grus]
        self.conv0 = Product(
            conv0.weight.detach(), conv0.bias.detach(), act=SILU, channels=config.mel_bins, lead=CONTEXT
        )
        self.conv1 = Product(conv1.weight.detach(), conv1.bias.detach(), act=SILU, channels=config.conv_channels)
        segments = len(recurrent_segments(config.hidden)) - 1  # as the recurrence has
        self.inputs = [Product(gru.input.weight.detach(), gru.input.bias.detach(), segments=segments) for gru in grus]
        self.dense = Product(network.dense.weight.detach(), network.dense.bias.detach(), act=SILU)
        self.head = Product(
            network.head.weight.detach(), network.head.bias.detach(), act=LOG_SOFTMAX, first=len(config.vocabulary)
        )
        self.norms = [Norm(cast(nn.LayerNorm, norm)) for norm in network.norms]
        self.lookahead = LookaheadNorm(network.lookahead, Norm(network.norm))

    def _buffers(self, columns: int, device: torch.device) -> None:
        """Allocate the fp16 buffers between the kernels of a step."""
        config = self.config
        rows = self.largest_rows

        def buffer(*sizes: int) -> Tensor:
            return torch.zeros(*sizes, dtype=torch.float16, device=device)

        self.input0 = buffer(rows * CONTEXT + 4 * columns, config.mel_bins)
        self.input1 = buffer(rows * CONTEXT + 2 * columns, config.conv_channels)
        self.x: tuple[Tensor, Tensor] = (buffer(columns, config.hidden), buffer(columns, config.hidden))
        self.normed = buffer(columns, config.hidden)
        self.gates = buffer(columns, 3 * config.hidden)

    def _recurrences(self, network: Network) -> list[FrameRecurrence]:
        """Return the recurrence with one launch per frame for every layer."""
        config = self.config
        self.states = states_buffer(self.largest_rows, config.hidden, self.x[0].device)
        made: list[FrameRecurrence] = []
        for layer, following in zip(network.grus, [*self.inputs[1:], self.dense], strict=True):
            weights = cast(GRULayer, layer).recurrent
            made.append(
                FrameRecurrence(
                    weights.weight.detach(), weights.bias.detach(), self.scratch, self.states, self.launching
                )
            )
            made[-1].ahead = following.weights
        return made

    def enqueue(self, block: StepBlock, rows: int, steps: int) -> None:
        """Enqueue the first `rows` rows of the block, `steps` steps each, on torch's current stream."""
        frames = steps * self.config.frames_per_step
        self.convolve(block, rows, frames, self.inputs[0].weights)
        self.leave(self.layers(block, rows, frames), block, rows, steps)

    def convolve(self, block: StepBlock, rows: int, frames: int, ahead: Tensor) -> None:
        """Features and convolutions, to `x[0]`; `ahead`: weights of the first layer, to prefetch."""
        columns = rows * frames
        scratch, how = self.scratch, self.launching
        self.features.enqueue(
            block.pcm, self.slabs, block.read, self.input0, self.input1, rows, 4 * frames, scratch, how,
            self.conv1.weights,
        )  # fmt: skip
        self.conv0.enqueue(self.input0, self.input1, 2 * columns, 2 * frames, scratch, launching=how, ahead=ahead)
        self.conv1.enqueue(self.input1, self.x[0], columns, frames, scratch, launching=how)

    def layers(self, block: StepBlock, rows: int, frames: int) -> Tensor:
        """Run each GRU layer as normalization, product and recurrence; return the output of the last one."""
        x, after = self.x
        columns = rows * frames
        for i, (norm, product, recurrence) in enumerate(zip(self.norms, self.inputs, self.recurrences, strict=True)):
            norm.enqueue(x, self.normed, columns, self.launching)
            product.enqueue(
                self.normed, self.gates, columns, frames, self.scratch, launching=self.launching,
                ahead=recurrence.weights,
            )  # fmt: skip
            recurrence.enqueue(
                self.gates[:columns].view(rows, frames, -1), x[:columns].view(rows, frames, -1),
                after[:columns].view(rows, frames, -1), self.slabs[f"gru{i}"], block.read[:rows], block.write[:rows],
                frames,
            )  # fmt: skip
            x, after = after, x
        return x

    def leave(self, x: Tensor, block: StepBlock, rows: int, steps: int) -> None:
        """Lookahead, dense layer and head of the layers' output `x`, one of `self.x`; other states to the slabs."""
        frames = steps * self.config.frames_per_step
        columns = rows * frames
        read, write, slabs, scratch, how = block.read, block.write, self.slabs, self.scratch, self.launching
        after = self.x[0] if x is self.x[1] else self.x[1]
        self.lookahead.enqueue(x, slabs["lookahead"], read, self.normed, rows, frames, how)
        with self.aside:  # launches that only write states
            self.lookahead.enqueue_shift(x, slabs["lookahead"], read, write, rows, frames)
            samples = steps * self.config.step_samples
            enqueue_leave(self.input0, self.input1, block.pcm, slabs, write, rows, frames, samples)
        self.dense.enqueue(self.normed, after, columns, frames, scratch, launching=how, ahead=self.head.weights)
        self.head.enqueue(after, block.out, columns, frames, scratch, block.out.stride(0), launching=how)
        self.aside.join()


def default_launching(network: Network, device: torch.device) -> Launching:
    """Return the launch options: prefetch weights that do not fit the second-level cache, on GPUs from sm_90 on."""
    if device.type != "cuda":
        return Launching()
    weights = sum(p.numel() * p.element_size() for p in network.parameters())
    able = torch.cuda.get_device_capability(device) >= (9, 0)
    large = weights > torch.cuda.get_device_properties(device).L2_cache_size // 2
    return Launching(overlapped=able, ahead=able and large)


def _powers(most: int) -> list[int]:
    """Return 1, 2, 4, ... and `most`: the column counts whose tiles are the widest of their kind."""
    found = [1]
    while 2 * found[-1] < most:
        found.append(2 * found[-1])
    return [*found, most]
