"""State of one stream in beam search, its serialization, and the base of states of decoders that wrap the search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from model.ctc.bias import Bias, TermAutomaton
from model.ctc.search import kernel
from model.ctc.search.layout import CHANGES, FRAMES, block_bytes
from model.ctc.search.prefix_score import NODES, SPELLINGS, Setup
from model.ctc.search.saved_beam import (
    VERSION,
    Memory,
    SavedBeam,
    checked_tree,
    link_hypotheses,
    tree_parts,
    write_root,
)
from model.ctc.search.symbols import Symbols
from model.ctc.words import Word
from model.machine.memory import mapped


class ReleasedState(ValueError):
    """A decoder state was used, or released again, after its release."""


@dataclass(slots=True, eq=False)
class BeamState:
    """Decoder state of one stream; `block` is its memory, at `address`."""

    block: NDArray[np.uint8]
    address: int
    bias: Bias
    terms: TermAutomaton  # `bias` in the letters or phones of the search, read by compiled code
    frames: int = 0
    silence_frames: int = 0
    has_text: bool = False
    changes: int = 0  # number of changes of the best hypothesis
    taken: int = 0  # number of calls of `take`
    taken_all: int = -1  # frames after which all words were taken last
    committed: list[Word] = field(default_factory=list)
    last_end: int = 0  # frame after the last committed or taken word: words do not overlap
    shown: tuple[Word, ...] | None = None  # cache of `words`, until the next change
    folded: Callable[[], BeamState] | None = None  # makes the memory again; None: it is there

    @property
    def revision(self) -> int:
        """A number that increases with every change of `words`, including the open word."""
        return self.changes + self.taken

    def opened(self) -> int:
        """Return the address, with the memory of a folded state. Raises: ReleasedState."""
        if self.folded is not None:
            made, self.folded = self.folded(), None
            self.block, self.address, self.terms = made.block, made.address, made.terms
        if not self.address:
            raise ReleasedState("this decoder state was already released")
        return self.address


@dataclass(slots=True, eq=False)
class SearchedState:
    """Base of decoder states that wrap those of a search: public fields are those of the search's state."""

    first: Any  # a `BeamState`, or the state of a transducer's search

    @property
    def frames(self) -> int:
        """Output frames decoded so far."""
        return self.first.frames  # type: ignore[no-any-return]

    @property
    def silence_frames(self) -> int:
        """Frames since the last letter."""
        return self.first.silence_frames  # type: ignore[no-any-return]

    @property
    def has_text(self) -> bool:
        """Whether the open segment contains a letter."""
        return self.first.has_text  # type: ignore[no-any-return]

    @property
    def revision(self) -> int:
        """A number that increases whenever the words change."""
        return self.first.revision  # type: ignore[no-any-return]


class SearchDecoder:
    """Base of decoders around the words of a search: what they only pass on."""

    def __init__(self, search: Any) -> None:
        """`search`: a `Decoder`."""
        self.search = search
        self.frame_s: float = search.frame_s
        self.supports_bias: bool = search.supports_bias

    def warm_up(self) -> None:
        """Compile all entry points, or load them from disk, so that the first stream need not wait."""
        self.search.warm_up()

    def set_bias(self, state: Any, bias: Bias) -> None:
        """Replace the key terms from the next frame on."""
        self.search.set_bias(state.first, bias)

    def unspeakable(self, bias: Bias) -> tuple[str, ...]:
        """Phrases that no symbols of the model express."""
        return cast(tuple[str, ...], self.search.unspeakable(bias))

    def word_log_prob(self, word: str) -> float:
        """Natural log-probability of a word without context; minus infinity if the search does not know it."""
        return cast(float, self.search.word_log_prob(word))

    def release(self, state: Any) -> None:
        """Free the memory of a state's search. Raises: ReleasedState."""
        self.search.release(state.first)

    def words(self, state: Any) -> tuple[Word, ...]:
        """Words of the open segment; the last one may be unfinished."""
        return cast(tuple[Word, ...], self.search.words(state.first))

    def stable_words(self, state: Any) -> int:
        """Number of leading `words` that can no longer change."""
        return cast(int, self.search.stable_words(state.first))


def new_state(beams: int, bias: Bias, terms: TermAutomaton) -> BeamState:
    """Return a state with zeroed memory for a search of this width; compiled code initializes it.

    The memory is mapped, so that a folded state leaves no hole in the heap, which small objects would keep.
    """
    block = mapped(block_bytes(beams))
    return BeamState(block, block.ctypes.data, bias, terms)


def saved_state(state: BeamState, beams: int, symbols: Symbols) -> bytes:
    """Serialize a state without its key terms. Raises: ReleasedState."""
    state.opened()
    saved = SavedBeam(
        version=VERSION,
        has_text=state.has_text,
        silence_frames=state.silence_frames,
        taken=state.taken,
        last_end=state.last_end,
        committed=tuple((word.text, word.start_s, word.end_s, word.confidence) for word in state.committed),
        **tree_parts(Memory(state.block, beams), symbols),
    )
    return msgspec.msgpack.encode(saved)


def loaded_state(saved: bytes, bias: Bias, terms: TermAutomaton, symbols: Symbols, setup: Setup) -> BeamState:
    """Deserialize a state for a search with these symbols and this setup. Raises: ValueError for damaged bytes."""
    read = msgspec.msgpack.decode(saved, type=SavedBeam)
    if read.version != VERSION:
        raise ValueError("this state was saved by an incompatible version")
    sizes = (int(setup.model[NODES]), int(setup.model[SPELLINGS]), terms.table[0])
    tree = checked_tree(read, beams=setup.beams, symbols=symbols, sizes=sizes)
    state = new_state(setup.beams, bias, terms)
    memory = Memory(state.block, setup.beams)
    write_root(memory, read, tree)
    kernel.regrow(state.address, terms.table, tree.parents, tree.symbols, setup)
    link_hypotheses(memory, read, tree)
    state.frames, state.changes = int(memory.header[FRAMES]), int(memory.header[CHANGES])
    state.has_text, state.silence_frames = read.has_text, read.silence_frames
    state.taken, state.last_end = read.taken, read.last_end
    state.committed = [Word(*word) for word in read.committed]
    return state
