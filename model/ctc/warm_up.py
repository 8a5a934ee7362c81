"""Compiling the beam search ahead of its first stream: `python -m model.ctc.warm_up`, once after installing.

The code does not depend on vocabulary, beams or language model. A server compiles by itself what it does not find.
"""

from __future__ import annotations

import time

from model.compiled import kept_in
from model.ctc import kernel
from model.ctc.beam import BeamDecoder


def main() -> None:
    """Compile, or find what is kept, and say in one line where that is and how long it took."""
    started = time.perf_counter()
    BeamDecoder(("", " ", "a"), 0.04).warm_up()
    folder = kept_in(kernel.advance_streams)
    where = f"kept in {folder}" if folder else "not kept, no folder can be written: every process compiles anew"
    print(f"beam search compiled in {time.perf_counter() - started:.1f} s, {where}")  # noqa: T201


if __name__ == "__main__":
    main()
