"""A network's step recorded once as a graph and replayed without the interpreter.

A step is about a hundred small operations. Called from Python each of them takes the interpreter's lock anew, and
beside a busy event loop the model thread waits for it every time; a recorded step takes it twice. The operations and
their order stay the same, so the results do too, to the bit (tests/test_network.py).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from torch.jit._trace import TracerWarning

from model.network import Network, State

EXAMPLE_ROWS = 4  # the graph holds for every number of rows


class _Flat(nn.Module):
    """The network with its state as a plain list of tensors, which is what can be recorded."""

    def __init__(self, network: Network, names: tuple[str, ...]) -> None:
        super().__init__()
        self.network, self.names = network, names

    def forward(self, pcm: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        log_probs, after = self.network(pcm, dict(zip(self.names, state, strict=True)))
        return (log_probs, *(after[name] for name in self.names))


class TracedStep:
    """`Network.forward` for inputs of exactly one step."""

    def __init__(self, network: Network) -> None:
        self._names = tuple(network.state_shapes())
        flat = _Flat(network, self._names).eval()
        state = network.fresh_state(EXAMPLE_ROWS)
        device = network.head.weight.device
        pcm = torch.zeros(EXAMPLE_ROWS, network.config.step_samples, dtype=torch.int16, device=device)
        with torch.no_grad(), warnings.catch_warnings():
            # Lengths of the loops over frames become constants: that is what "exactly one step" means.
            warnings.simplefilter("ignore", TracerWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            traced = torch.jit.trace(flat, (pcm, *state.values()), check_trace=False)  # type: ignore[no-untyped-call]
            self._run = cast(Callable[..., tuple[Tensor, ...]], torch.jit.freeze(traced))

    def __call__(self, pcm: Tensor, state: State) -> tuple[Tensor, State]:
        """int16 PCM (B, step_samples) -> log-probs (B, frames_per_step, V) float32, next state."""
        log_probs, *after = self._run(pcm, *(state[name] for name in self._names))
        return log_probs, dict(zip(self._names, after, strict=True))
