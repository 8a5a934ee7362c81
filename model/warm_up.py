"""Compile ahead what a server would compile at its first start: `python -m model.warm_up`; `make setup` runs it.

The 8-bit step, where `auto` takes it here, the beam search and the recurrent language model; the shipped n-grams are
laid out in memory's form too. Machine code is kept by the name of the processor, so a folder that comes from another
kind of processor is compiled anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from model.acoustic import load_own
from model.ctc.search import kernel
from model.decoder import SENTENCES, accurate_of, make_decoder
from model.int8 import step
from model.lm.recurrent.model import kept_model
from model.lm.recurrent.step import score_texts
from model.machine.compiled import kept_in


def main() -> None:
    """Compile or load the machine code; print a line for each part: its folder and the time taken."""
    model = load_own(device="cpu")
    if model.precision == "int8":
        _timed("8-bit step", lambda: model.slots(capacity=1, largest=1).run([0]), step.step)

    def search() -> None:
        accurate = accurate_of(model, make_decoder(config=model.config, decoder="beam"))
        if accurate is not None:
            accurate.warm_up()

    _timed("beam search", search, kernel.advance_streams)
    _timed("recurrent language model", lambda: kept_model(SENTENCES).score([("a",)]), score_texts)


def _timed(name: str, work: Callable[[], object], function: Callable[..., Any]) -> None:
    started = time.perf_counter()
    work()
    folder = kept_in(function)
    where = f"kept in {folder}" if folder else "not kept, no folder can be written: every process compiles anew"
    print(f"{name} compiled in {time.perf_counter() - started:.1f} s, {where}")  # noqa: T201


if __name__ == "__main__":
    main()
