"""Compiled decoder and joiner of one model as the search of any thread calls them."""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from model.ctc.tokens import Tokens
from model.published.compiled.transducer.network import CompiledCalls, CompiledTransducer
from model.published.frame_joiner import Rows
from model.published.transducer import Contexts, Floats, Indices, TransducerNetworks


class CompiledNetworks:
    """Networks in another form than the graphs that they stand for; implements `TransducerNetworks` by structure.

    Contexts are those of the graphs; outputs of the prediction network are what the joiner adds to a frame.
    """

    def __init__(self, network: CompiledTransducer, published: TransducerNetworks) -> None:
        """`network`: the compiled form of the networks `published`."""
        self.network = network
        self.tokens: Tokens = published.tokens
        self.rows = Rows()
        self.symbols_per_frame = published.symbols_per_frame
        self._own = threading.local()  # calls of each thread
        context, _ = published.start
        recurrent = not network.shapes.context
        self.start: tuple[Contexts, Floats] = (
            self.advance(np.zeros_like(context), np.array([self.tokens.blank]))
            if recurrent
            else (context, self._calls.predict(context))
        )

    @property
    def _calls(self) -> CompiledCalls:
        if not hasattr(self._own, "calls"):
            self._own.calls = self.network.calls()
        calls: CompiledCalls = self._own.calls
        return calls

    def advance(self, contexts: Contexts, symbols: Indices) -> tuple[Contexts, Floats]:
        """See `TransducerNetworks`."""
        if not self.network.shapes.context:
            contexts = np.array(contexts, np.float32, order="C")  # a copy, which the call changes
            return contexts, self._calls.predict(symbols, contexts)
        contexts = np.concatenate([contexts[:, 1:], symbols[:, np.newaxis]], axis=1)
        return contexts, self._calls.predict(contexts)

    def project(self, encoded: Floats) -> Floats:
        """See `TransducerNetworks`."""
        return self._calls.project(encoded)

    def join(self, frames: Floats, outputs: Floats) -> Floats:
        """See `TransducerNetworks`."""
        return self._calls.join(frames, outputs)

    def best(self, frames: Floats, outputs: Floats, written: NDArray[np.bool_]) -> tuple[Indices, Floats]:
        """See `TransducerNetworks`."""
        return self._calls.best(frames, outputs, written)
