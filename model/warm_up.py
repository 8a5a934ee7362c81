"""Compile the code that a server needs before its first start: `python -m model.warm_up`; `make setup` runs it.

With `--published`, as in images, the steps of published networks, too: otherwise the first load of one compiles them.
Compiles the 8-bit steps (that of GRUs if `auto` uses it here), the levels of the audio, the reading of n-grams, the
beam search, the network of finished segments and the punctuation tagger, and stores the shipped n-grams in their memory
layout. Machine code is cached by processor name, so a folder from another kind of processor is compiled again.
`--types FILE` writes the argument types of what was used, for `model.prebuilt.image`.
"""

from __future__ import annotations

import argparse
import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np

from model.acoustic import load_own
from model.attention import step as attention
from model.audio import levels
from model.checkpoint import GRU
from model.ctc.search import kernel
from model.decoder import decoder_of, second_passes_of
from model.int8 import step
from model.lm.arpa import read_arpa
from model.lm.arpa_rows import parse_rows
from model.machine.compiled import ENTRY_POINTS, kept_in
from model.machine.compiler import numba
from model.moonshine import step as moonshine
from model.moonshine.transcriber import SegmentTranscriber
from model.published.compiled.fastconformer import step as fastconformer
from model.published.compiled.team import help_out
from model.published.compiled.transducer import step as transducer
from model.published.compiled.zipformer2 import step as zipformer2
from model.published.features import FbankWindows, add_samples
from model.published.filter_bank import WHISPER
from model.published.states import SlotStates, StateTensor
from model.published.timing import PublishedDescription
from model.published.transducer.frame_joiner import FrameJoiner, Rows
from model.punctuation.step import tag_words
from model.punctuation.tagger import shipped_tagger
from model.speakers import step as speakers
from model.speakers.slot_model import load_speaker_model
from model.vad import step as vad
from model.vad.silero import SileroVad

PUBLISHED = (
    *(fastconformer.step, fastconformer.project_positions, zipformer2.step, help_out),
    *(transducer.project, transducer.predict, transducer.join, transducer.find_best),
)
"""Entry points of published networks."""
ROWS, FRAMES, SYMBOLS = 2, 3, 4  # of the joiner that is warmed up

NGRAMS = """\\data\\
ngram 1=3
ngram 2=1

\\1-grams:
-1 <unk>
-1 </s>
-1 <s> -1

\\2-grams:
-1 <s> </s>

\\end\\
"""
"""An ARPA file."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Compile or load the machine code; print a line per part with its folder and the time taken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--published", action="store_true", help="the steps of published networks, too")
    parser.add_argument("--types", type=Path, help="write the argument types of what was used to this file")
    options = parser.parse_args(arguments)
    model, gru = load_own(device="cpu"), load_own(GRU, device="cpu")
    _timed("8-bit step with attention", lambda: model.slots(capacity=1, largest=1).run([0]), attention.step)
    if gru.facts.precision == "int8":
        _timed("8-bit step of GRUs", lambda: gru.slots(capacity=1, largest=1).run([0]), step.step)

    def search() -> None:
        for facts in (model.facts, gru.facts):
            for decoder in second_passes_of(facts, decoder_of(facts, decoder="beam")).values():
                decoder.warm_up()

    _timed("network of finished segments", SegmentTranscriber().warm_up, moonshine.read)
    _timed("levels of the audio", levels.warm_up, levels.write_levels)
    _timed("reading of n-grams", _read_ngrams, parse_rows)
    _timed("beam search", search, kernel.advance_streams)
    _timed("voice detector", lambda: SileroVad.load().slots(capacity=1, largest=1).warm_up_step(1), vad.step)
    _timed("vectors of voices", lambda: load_speaker_model(1).run([0]), speakers.step)
    if options.published:
        _timed("features of published models", warm_up_published, add_samples)
        for function in PUBLISHED:
            name = function.__module__.rsplit(".", 2)[1]
            _timed(f"{function.__name__} of {name}", partial(precompile, function), function)
    _timed("punctuation tagger", lambda: shipped_tagger().warm_up(), tag_words)
    if options.types is not None:
        options.types.write_bytes(pickle.dumps(used_types()))


def warm_up_published() -> None:
    """Compile what every published model uses, whatever its network: features, states, the joiner's search."""
    _features()
    _states()
    _joiner()


def _features() -> None:
    described = PublishedDescription("", "", "", (), 16_000, window=3, shift=1, frames_per_step=1, frame_s=0.01)
    windows = FbankWindows(replace(WHISPER, normalized=True), described, capacity=1)
    for _ in range(described.first_steps):
        windows.push(np.zeros(1, np.int64), np.zeros((1, described.step_samples), np.int16))


def _states() -> None:
    for numbers in (1, 2):  # units of 4 and of 8 bytes
        states = SlotStates((StateTensor((numbers,), np.dtype(np.float32)),), capacity=1).batched(1)
        slots = np.zeros(1, np.int64)
        states.gather(slots)
        states.scatter(slots, 1)


def _joiner() -> None:
    encoded = np.zeros((ROWS, FRAMES, SYMBOLS), np.float32)

    def first(frames: Any, *_: Any) -> tuple[Any, Any]:
        return np.zeros(len(frames), np.int64), np.zeros(len(frames), np.float32)

    joiner = FrameJoiner(first, Rows(), encoded, np.zeros(SYMBOLS, np.bool_))
    joiner.next_symbols(np.zeros((ROWS, SYMBOLS), np.float32))


def _read_ngrams() -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, "ngrams.arpa")
        path.write_text(NGRAMS)
        read_arpa(path)


def used_types() -> list[tuple[str, str, list[Any]]]:
    """Return module, name and signatures of all entry points that this process has compiled or loaded."""
    used = [entry for entry in ENTRY_POINTS if entry.signatures]
    return [(entry.py_func.__module__, entry.py_func.__qualname__, entry.signatures) for entry in used]


def precompile(function: Any) -> None:
    """Compile an entry point for its annotated arguments, integers and tuples of them, and cache the code."""
    function.compile(types_of(function))


def types_of(function: Any) -> tuple[Any, ...]:
    """Return numba's types of an entry point's annotated arguments, integers and tuples of them."""
    hints = get_type_hints(function.py_func)
    del hints["return"]
    types: Any = numba.typeof
    return tuple(types(_example(kind)) for kind in hints.values())


def _example(kind: Any) -> Any:
    """Return a value of a type: 0, or a tuple of such values."""
    if hasattr(kind, "_fields"):  # a NamedTuple
        hints = get_type_hints(kind)
        return kind(*(_example(hints[name]) for name in kind._fields))
    if get_origin(kind) is tuple:
        return tuple(_example(arg) for arg in get_args(kind))
    return 0


def _timed(name: str, work: Callable[[], object], function: Callable[..., Any]) -> None:
    started = time.perf_counter()
    work()
    folder = kept_in(function)
    where = f"cached in {folder}" if folder else "not cached, no folder is writable: every process compiles again"
    print(f"{name} compiled in {time.perf_counter() - started:.1f} s, {where}")  # noqa: T201


if __name__ == "__main__":
    main()
