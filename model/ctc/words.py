"""A recognised word, and the contract that every CTC decoder keeps."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from model.ctc.bias import NO_BIAS, Bias

LogProbs = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Word:
    """Times in seconds since the decoder state was started; confidence in 0..1."""

    text: str
    start_s: float
    end_s: float
    confidence: float


def digest_of(*parts: str) -> str:
    """Return a digest that other parts, or the same ones divided otherwise, do not have."""
    return hashlib.sha256(
        "".join(f"{len(part)}:{part}" for part in parts).encode(errors="backslashreplace")
    ).hexdigest()


class DecoderState(Protocol):
    """What a decoder remembers of one stream; everything else about it is the decoder's own business."""

    @property
    def frames(self) -> int:
        """Output frames decoded so far, those skipped at the start not counted."""

    @property
    def silence_frames(self) -> int:
        """Frames since the last letter; spaces count as silence."""

    @property
    def has_text(self) -> bool:
        """Whether the open segment holds a letter."""

    @property
    def revision(self) -> int:
        """A number that grows whenever the words change."""


class Decoder(Protocol):
    """Incremental CTC decoding, batched over streams; the seam between greedy and beam search.

    A state belongs to one stream and is only ever changed by its owner's calls. Calls for different streams may come
    from different threads at once. The open segment is what has been decoded and not been taken yet.
    """

    @property
    def supports_bias(self) -> bool:
        """Whether key terms make a difference."""

    @property
    def digest(self) -> str:
        """Hexadecimal digest of all that decides what it hears: equal decoders can load each other's states."""

    def warm_up(self) -> None:
        """Do now what would make the first stream wait."""

    def start(self, skip_frames: int, bias: Bias = NO_BIAS) -> Any:
        """Return a fresh state that ignores the first `skip_frames` frames: they lie before the audio."""

    def set_bias(self, state: Any, bias: Bias) -> None:
        """Replace the stream's key terms, from the next frame on."""

    def release(self, state: Any) -> None:
        """Give back at once what a state holds; dropping the state does so, too. Raises: ValueError the second time."""

    def advance(self, states: Sequence[Any], log_probs: LogProbs) -> None:
        """Decode (B, T, V) more frames, row b into `states[b]`."""

    def save(self, state: Any) -> bytes:
        """Return all of a state but its key terms, for `load`; the state goes on."""

    def load(self, saved: bytes, bias: Bias = NO_BIAS) -> Any:
        """Return a state that goes on as the saved one would, given its key terms. Raises: ValueError."""

    def words(self, state: Any) -> tuple[Word, ...]:
        """Words of the open segment; the last one may be unfinished."""

    def stable_words(self, state: Any) -> int:
        """How many of `words`, from the first, can no longer change."""

    def take(self, state: Any, count: int | None = None) -> tuple[Word, ...]:
        """Remove and return the first `count` words (None: all) of the open segment."""
