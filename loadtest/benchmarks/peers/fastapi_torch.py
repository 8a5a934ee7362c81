"""Peer (a): FastAPI and torch without batching, the simplest implementation.

Each message runs a step of the network with the stream's state, on the event loop or in a thread.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from typing import Annotated

import typer

from loadtest.benchmarks.peers.network import PeerNetwork, State
from loadtest.benchmarks.peers.service import BatchSizes, StepSession, create_app, serve
from loadtest.errors import BadSettings


class OneAtATime:
    """Runs steps of the network for single streams."""

    def __init__(self, network: PeerNetwork, sizes: BatchSizes, *, in_thread: bool) -> None:
        self._network, self._sizes, self._in_thread = network, sizes, in_thread

    def fresh(self) -> State:
        """Return the state of a new stream."""
        return self._network.fresh_state()

    async def step(self, pcm: bytes, state: State) -> tuple[Sequence[int], State]:
        """Run one step in a batch of one."""
        self._sizes.ran(1)
        if self._in_thread:
            return await asyncio.to_thread(self._network.step_one, pcm, state)
        return self._network.step_one(pcm, state)


def main(
    *,
    port: Annotated[int, typer.Option()],
    threads: Annotated[int, typer.Option(help="Threads of torch.")] = 1,
    recorded: Annotated[bool, typer.Option(help="Use tutti's recorded step instead of the module as written.")] = False,
    in_thread: Annotated[bool, typer.Option(help="Run steps in a thread, not on the event loop.")] = False,
    precision: Annotated[str, typer.Option()] = "auto",
) -> None:
    """Serve until stopped."""
    try:
        network = PeerNetwork(threads=threads, recorded=recorded, precision=precision)
    except BadSettings as error:
        raise typer.BadParameter(str(error)) from error
    network.warm_up([1])
    gc.freeze()
    steps = OneAtATime(network, sizes := BatchSizes(), in_thread=in_thread)
    serve(create_app(lambda: StepSession(network.card, steps), sizes), port)


if __name__ == "__main__":
    typer.run(main)
