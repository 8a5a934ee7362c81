"""Step of a network, recorded once as a graph and replayed without the interpreter.

A step is about a hundred small operations. Called from Python, each of them acquires the interpreter lock again, and
under load on the event loop the model thread waits for it each time, up to a switch interval. A recorded step waits
when it returns, and again for nearly every tensor argument: torch keeps a tensor's Python object alive while only C++
refers to it, and acquires the lock whenever that starts or ends. So the arguments of the graph for serving, `SlabStep`,
are only numbers: inputs, states and the row index are in memory that the graph refers to. The operations and their
order are the same, so results are bit-identical (tests/model/test_network.py).
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.jit._trace import TracerWarning

from model.torch_network.network import Network, State

EXAMPLE_ROWS = 4  # rows of the recording; the graph works for any number of rows

PRODUCT = """
def product(x: Tensor, packed: Tensor, bias: Tensor) -> Tensor:
    none: List[Optional[number]] = []
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", none, "")
"""
"""TorchScript source, the only way to write an empty list of the operator's type; inlined by tracing."""


class _Packed(nn.Module):
    """A bf16 product with weights packed for oneDNN once, whereas `nn.Linear` packs them at each call.

    Bit-identical, 25 to 30 µs faster. Source: model/LOG.md.
    """

    def __init__(self, full: nn.Linear, product: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.product, self.bias = product, full.bias.detach()
        self.weight = full.weight.detach()
        self.packed = torch.ops.mkldnn._reorder_linear_weight(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x, self.packed, self.bias)


class _Rows(nn.Module):
    """The network with its state in slabs, of which a call reads and writes some rows."""

    def __init__(self, network: Network, names: tuple[str, ...], products: Sequence[_Packed]) -> None:
        super().__init__()
        self.network, self.names, self.products = network, names, tuple(products)

    def forward(
        self, pcm: Tensor, read: Tensor, write: Tensor, slabs: tuple[Tensor, ...], packed: tuple[Tensor, ...]
    ) -> Tensor:
        for product, weight in zip(self.products, packed, strict=True):
            product.packed = weight  # an input, because tracing does not support packed tensors as constants
        state = {name: slab.index_select(0, read) for name, slab in zip(self.names, slabs, strict=True)}
        log_probs, after = self.network(pcm, state)
        for name, slab in zip(self.names, slabs, strict=True):
            slab.index_copy_(0, write, after[name][: write.shape[0]])
        return cast(Tensor, log_probs)


class _Held(nn.Module):
    """The recorded step with its memory owned by the graph; its arguments are numbers only."""

    def __init__(
        self, rows: nn.Module, pcm: Tensor, index: Tensor, slabs: tuple[Tensor, ...], packed: tuple[Tensor, ...]
    ) -> None:
        super().__init__()
        self.rows, self.pcm, self.index, self.slabs, self.packed = rows, pcm, index, slabs, packed

    def forward(self, first: int, count: int, kept: int) -> Tensor:
        read = self.index[first : first + count]
        pcm = self.pcm[first : first + count]
        log_probs: Tensor = self.rows(pcm, read, read[:kept], self.slabs, self.packed)
        return log_probs


class SlabStep:
    """Recorded `Network.forward` for inputs of exactly one step with states in slabs; on a CPU."""

    def __init__(self, network: Network, pcm: Tensor, index: Tensor, slabs: State) -> None:
        """Record on PCM (R, step_samples) int16, index (R,) int64 and slabs {name: (any, …)}, read at each call."""
        names = tuple(network.state_shapes())
        own, products = _with_packed_products(network)
        packed = tuple(product.packed for product in products)
        read, fresh = torch.arange(EXAMPLE_ROWS), tuple(network.fresh_state(EXAMPLE_ROWS).values())
        example = (_example_pcm(network), read, read[1:].clone(), fresh, packed)
        rows = _traced(_Rows(own, names, products), example)
        held = _Held(rows, pcm, index, tuple(slabs[name] for name in names), packed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            self._run = cast(Callable[[int, int, int], Tensor], torch.jit.freeze(torch.jit.script(held.eval())))

    def __call__(self, first: int, count: int, kept: int) -> Tensor:
        """Step rows first … first + count - 1 of `pcm`; the state of row i is row `index[i]` of the slabs.

        The new states of the first `kept` rows are stored, those of the others are dropped.
        Returns: log-probs (count, frames_per_step, outputs) float32.
        """
        return self._run(first, count, kept)


def _with_packed_products(network: Network) -> tuple[Network, list[_Packed]]:
    """Copy a network and pack its bf16 products; in other precisions return it unchanged."""
    if network.dtype != torch.bfloat16 or not torch._C._has_mkldnn:
        return network, []
    product = torch.jit.CompilationUnit(PRODUCT).product
    own, products = copy.deepcopy(network), []
    for module in list(own.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                products.append(_Packed(child, product))
                setattr(module, name, products[-1])
    return own, products


def _example_pcm(network: Network) -> Tensor:
    samples, device = network.config.step_samples, network.head.weight.device
    return torch.zeros(EXAMPLE_ROWS, samples, dtype=torch.int16, device=device)


def _traced(module: nn.Module, example: tuple[Any, ...]) -> Any:
    with torch.no_grad(), warnings.catch_warnings():
        # Lengths of the loops over frames become constants, hence "exactly one step".
        warnings.simplefilter("ignore", TracerWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.trace(module.eval(), example, check_trace=False)  # type: ignore[no-untyped-call]
